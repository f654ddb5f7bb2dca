"""What moves from step to step, by configuration."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl.controllers import AdaptiveEntropy, AdaptiveKL
from hexpo.domain.moving import Moving
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import structure

CONTROLLERS: Mapping[str, type[Any]] = MappingProxyType(
    {"adaptive_kl": AdaptiveKL, "adaptive_entropy": AdaptiveEntropy}
)
"""What `algorithm.controllers` may name. Each starts at the coefficient that is configured."""


def moving_of(config: RunConfig) -> Moving:
    """The state before the first step. Raises WrongValue: an unknown controller or option."""
    chosen = config.algorithm
    start = {"adaptive_kl": chosen.kl.coefficient, "adaptive_entropy": chosen.entropy}
    made: dict[str, Any] = {}
    for one in chosen.controllers:
        if one.name not in CONTROLLERS:
            raise WrongValue(
                f"unknown controller {one.name!r}{did_you_mean(one.name, CONTROLLERS)}"
            )
        values = {"coefficient": start[one.name], **one.options}
        made[one.name], problems = structure(values, CONTROLLERS[one.name])
        if problems:
            raise WrongValue(f"{one.name}: {'; '.join(str(problem) for problem in problems)}")
    return Moving(kl=made.get("adaptive_kl"), entropy=made.get("adaptive_entropy"))
