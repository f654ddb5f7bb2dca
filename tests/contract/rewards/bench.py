"""Trajectories, and rewards that grade them. It runs alone, in a child process too."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.rewards import math, python
from hexpo.adapters.rewards.wire.reward import PooledReward
from hexpo.application.ports.reward import RewardFunction
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Outcome,
    Scored,
    Trajectory,
)
from hexpo.entrypoints.testing.reward import answer

GRADERS = Path(__file__).parents[2] / "data" / "rewards" / "graders.py"


def answered(
    text: str, truth: Any = None, *, failure: Failed | None = None, **extra: Any
) -> Trajectory:
    """A trajectory of one prompt token and three sampled ones."""
    row = answer(text, truth=truth, **extra)
    return attrs.evolve(row, prompt=attrs.evolve(row.prompt, source="set"), failure=failure)


def graded(reward: RewardFunction, *batches: Sequence[Trajectory]) -> list[Sequence[Outcome]]:
    """Outcomes of batches, one after the other; the reward is closed at the end."""

    async def run() -> list[Sequence[Outcome]]:
        try:
            return [await reward.grade(batch) for batch in batches]
        finally:
            await reward.close()

    return asyncio.run(run())


def known(**settings: Any) -> PooledReward:
    return python.build(python.Config(function=f"{GRADERS}:known", **settings))


def values(outcomes: Sequence[Outcome]) -> list[float | Cause]:
    return [row.value if isinstance(row, Scored) else row.cause for row in outcomes]


NO_TEXT: Any = 5
MATHS = [answered("1/2", "0.5"), answered("1/3", "0.5"), answered(NO_TEXT, "0.5")]


def print_maths() -> None:
    """What a child process of a test does."""
    [outcomes] = graded(math.build(math.Config(workers=1)), MATHS)
    sys.stdout.write(str(values(outcomes)))
