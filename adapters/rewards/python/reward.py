"""Runs a user's function in grader processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from hexpo.adapters.rewards.wire.reward import PooledReward


@attrs.frozen(kw_only=True)
class Config:
    """Which function, and within which bounds."""

    function: str
    """`path/to/file.py:name` or `package.module.name`."""
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    """Further keyword arguments of every call."""
    truth_as: str = "truth"
    """Name of the column in which a TRL function gets the truth, such as `answer`."""
    chat: bool = True
    """Give a TRL function lists of messages; false: plain texts."""
    bound_seconds: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """How long one sample may take before its process is stopped."""
    workers: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """How many samples are graded at the same time, each in a process of its own."""


def build(config: Config) -> PooledReward:
    """Load the function once, in a process that ends again, so that a wrong name fails here.

    Raises: RewardUnavailable: there is no such file, module or function, its code raises while
        loading, or its parameters are of no known style; says which.
    """
    from hexpo.adapters.rewards.wire.process import GraderFile, GraderProcess
    from hexpo.adapters.rewards.wire.reward import PooledReward

    grader = GraderFile(
        name=f"rewards/python ({config.function})",
        file=Path(__file__).with_name("grader.py"),
        options={
            "function": config.function,
            "arguments": dict(config.arguments),
            "truth_as": config.truth_as,
            "chat": config.chat,
        },
        bound_seconds=config.bound_seconds,
    )
    trial = GraderProcess(grader)
    try:
        wants = trial.wait_ready()
    finally:
        trial.kill()
    return PooledReward(grader, workers=config.workers, with_ids="answer_ids" in wants)
