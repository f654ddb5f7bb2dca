"""Low-rank adapters that travel by themselves: both sides must scale them alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.find import config_type


def problems(config: RunConfig) -> Iterator[Problem]:
    """A rank that the engine has no room for, and a scale that is not the trainer's: that one does
    not travel, and another would change the policy without a word."""
    sender = _settings("training", config.training.backend, config.training.options)
    taker = _settings("rollout", config.rollout.engine, config.rollout.options)
    lora, room = getattr(sender, "lora", None), getattr(taker, "adapter_rank", 0)
    if not room:
        return
    sent = getattr(getattr(sender, "sent", None), "value", "merged")
    if lora is None or sent != "adapters":
        yield Problem(
            "rollout.options.adapter_rank",
            f"{room}: the engine waits for adapters, and the trainer sends whole weights; set"
            " training.options.lora and training.options.sent=adapters, or use 0",
        )
        return
    if lora.rank > room:
        yield Problem(
            "rollout.options.adapter_rank", f"{room}: the trainer's have the rank {lora.rank}"
        )
    if lora.alpha != taker.adapter_alpha:
        yield Problem(
            "rollout.options.adapter_alpha",
            f"{taker.adapter_alpha:g}: the trainer's lora.alpha is {lora.alpha:g}, and the engine"
            " would scale its adapters otherwise",
        )


def _settings(port: str, kind: str, options: Mapping[str, Any]) -> Any:
    """What the options make; None where they are wrong, which is listed elsewhere."""
    of = config_type(port, kind)
    return None if of is None else structure(options, of)[0]
