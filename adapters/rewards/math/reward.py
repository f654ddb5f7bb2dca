"""Runs math-verify in grader processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hexpo.domain.errors import MissingExtra

if TYPE_CHECKING:
    from hexpo.adapters.rewards.wire.reward import PooledReward


@attrs.frozen(kw_only=True)
class Config:
    """Within which bounds answers are compared."""

    bound_seconds: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """How long one sample may take; simplification may go on for ever."""
    workers: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """How many samples are graded at the same time, each in a process of its own."""


def build(config: Config) -> PooledReward:
    """A reward of 1.0 where the answer's last expression equals the truth, else 0.0.

    The component `parsed` says whether the answer held an expression at all. A truth that can't
    be read is `Failed(UNSUPPORTED)`, an error inside the comparison `Failed(RAISED)`.

    Raises: MissingExtra: math-verify is not installed.
    """
    if find_spec("math_verify") is None:
        raise MissingExtra("rewards/math needs math-verify: pip install 'hexpo[math]'")
    from hexpo.adapters.rewards.wire.process import GraderFile
    from hexpo.adapters.rewards.wire.reward import PooledReward

    grader = GraderFile(
        name="rewards/math",
        file=Path(__file__).with_name("grader.py"),
        bound_seconds=config.bound_seconds,
    )
    return PooledReward(grader, workers=config.workers)
