"""What several processes of a run share: cores, devices, and the way that weights take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hexpo.infrastructure.config.schema import Adapter, RunConfig
from hexpo.infrastructure.find import config_type

AUTO = "auto"
"""Value of `rollout.transfer` that leaves the choice to us."""


def is_one_process(config: RunConfig) -> bool:
    """Everything runs in the process that was started."""
    return config.training.ranks == 1 and not config.rollout.replicas


def takes_turns(config: RunConfig) -> bool:
    """Generation and training never run at once, so that they may share cores and devices."""
    return config.asynchrony.max_staleness == 0


def at_once(config: RunConfig) -> int:
    """Processes that compute at the same time."""
    ranks, replicas = config.training.ranks, config.rollout.replicas
    return max(ranks, replicas) if takes_turns(config) else ranks + replicas


def platform_options(config: RunConfig) -> Mapping[str, Any]:
    """The platform's options, with the number of processes that its cores are shared by."""
    given = config.platform.options
    of = config_type("platform", config.platform.kind)
    knows = of is not None and "sharers" in attrs.fields_dict(of)
    if not knows or given.get("sharers", 1) != 1:
        return given
    return {**given, "sharers": at_once(config)}


def transfer_of(config: RunConfig) -> Adapter:
    """How weights reach the rollout: within one process they are shared, on one machine they go
    through shared memory, between machines by broadcast."""
    if config.rollout.transfer != AUTO:
        return Adapter(kind=config.rollout.transfer)
    if not config.rollout.replicas:
        return Adapter(kind="shared")
    on_one_machine = config.cluster.kind == "local"
    return Adapter(kind="shared_memory" if on_one_machine else "collective")
