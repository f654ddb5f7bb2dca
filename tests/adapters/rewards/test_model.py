"""A reward model: which token is scored, and what cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hexpo.adapters.models.layout import Rows
from hexpo.adapters.rewards.model import Config, ModelReward
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import Cause, Failed, Outcome, Prompt, Scored, StopReason, Trajectory


class Ids:
    """A model whose hidden state of a selected token is that token's id."""

    def hidden(self, rows: Rows) -> Tensor:
        return rows.labels[:, None].float()


def reward(*, path: Path = Path("unread"), offset: float = 0.0, scale: float = 1.0) -> ModelReward:
    chosen = Config(path=str(path), offset=offset, scale=scale)
    return ModelReward(chosen, Ids(), torch.tensor([[0.5]]), vocabulary=20)  # type: ignore[arg-type]


def row(tokens: list[int], action: list[int], *, failure: Failed | None = None) -> Trajectory:
    nothing = torch.zeros(len(tokens))
    return Trajectory(
        id=0,
        group=0,
        prompt=Prompt(id="row", messages=()),
        tokens=torch.tensor(tokens),
        action=torch.tensor(action).bool(),
        prompt_length=1,
        behaviour=nothing,
        version=nothing.long(),
        stop=StopReason.STOP,
        failure=failure,
    )


def graded(made: ModelReward, *rows: Trajectory) -> Sequence[Outcome]:
    async def run() -> Sequence[Outcome]:
        try:
            return await made.grade(rows)
        finally:
            await made.close()
            await made.close()

    return asyncio.run(run())


def test_the_last_answer_token_is_scored() -> None:
    """X6: as it was trained; a tool's tokens after it say nothing. Offset first, then scale."""
    found = graded(
        reward(offset=1.0, scale=10.0), row([1, 8, 4], [0, 1, 1]), row([1, 6, 9, 9], [0, 1, 0, 0])
    )
    assert [one.value for one in found if isinstance(one, Scored)] == [30.0, 40.0]
    assert isinstance(found[0], Scored)
    assert found[0].components == {"model": 2.0}


def test_rows_that_cannot_be_scored_fail_alone() -> None:
    """K2: a value with a cause, never 0.0."""
    broken = Failed(cause=Cause.TIMED_OUT, message="late")
    found = graded(
        reward(),
        row([1, 2], [0, 0]),
        row([1, 20], [0, 1]),
        row([1, 2], [0, 1], failure=broken),
        row([1, 2], [0, 1]),
    )
    assert [one.cause for one in found if isinstance(one, Failed)] == [
        Cause.UNSUPPORTED,
        Cause.UNSUPPORTED,
        Cause.TIMED_OUT,
    ]
    assert isinstance(found[3], Scored)


def test_a_closed_reward_model_says_so() -> None:
    """K: no sample is blamed."""
    made = reward()
    asyncio.run(made.close())
    with pytest.raises(RewardUnavailable, match="closed"):
        asyncio.run(made.grade([row([1, 2], [0, 1])]))
