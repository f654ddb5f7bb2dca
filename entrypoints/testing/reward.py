"""The contract of the RewardFunction port: parametrise a test over `CONTRACT`.

@pytest.mark.parametrize("check", CONTRACT)
def test_reward(check: Check) -> None:
    asyncio.run(check(my_reward, [answer("7", truth="7"), answer("8", truth="7")]))

Give rows that the reward can grade, with scores that are not all equal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch

from hexpo.application.ports.reward import RewardFunction
from hexpo.domain.trajectory import (
    Cause,
    Message,
    Outcome,
    Prompt,
    Scored,
    StopReason,
    Trajectory,
)
from hexpo.entrypoints.testing.expecting import expect

Open = Callable[[], RewardFunction]
"""Gives a new reward."""
Check = Callable[[Open, Sequence[Trajectory]], Coroutine[Any, Any, None]]
"""Raises AssertionError where a reward breaks the contract, and closes it."""

BOUND = 60.0
"""Seconds after which something hangs."""


def answer(text: str, *, prompt: str = "?", truth: Any = None, **extra: Any) -> Trajectory:
    """A finished trajectory: a question, an answer of three tokens, and the row's other columns."""
    return Trajectory(
        id=0,
        group=0,
        prompt=Prompt(id="row", messages=(Message("user", prompt),), truth=truth, extra=extra),
        tokens=torch.tensor([1, 2, 3, 4]),
        prompt_length=1,
        action=torch.tensor([False, True, True, True]),
        behaviour=torch.zeros(4),
        version=torch.zeros(4, dtype=torch.int64),
        stop=StopReason.STOP,
        text=text,
    )


def _told(outcomes: Sequence[Outcome]) -> list[float | Cause]:
    return [one.value if isinstance(one, Scored) else one.cause for one in outcomes]


async def _grade(reward: RewardFunction, rows: Sequence[Trajectory]) -> list[float | Cause]:
    outcomes = await asyncio.wait_for(reward.grade(rows), BOUND)
    expect(len(outcomes) == len(rows), f"{len(outcomes)} outcomes for {len(rows)} rows")
    return _told(outcomes)


async def one_outcome_a_row_in_order(open_reward: Open, rows: Sequence[Trajectory]) -> None:
    """Whatever stands beside a row, before or after it; no row is no outcome."""
    reward = open_reward()
    straight = await _grade(reward, rows)
    scores = [one for one in straight if isinstance(one, float)]
    expect(len(scores) == len(rows), f"rows that it can grade were not scored: {straight}")
    expect(all(map(math.isfinite, scores)), f"a score is not finite: {scores}")
    expect(len(set(scores)) > 1, "all scores are equal: nothing is shown; give other rows")
    expect(await _grade(reward, rows[::-1]) == straight[::-1], "outcomes follow another order")
    expect(await _grade(reward, []) == [], "no row has an outcome")
    await reward.close()


async def groups_are_graded_side_by_side(open_reward: Open, rows: Sequence[Trajectory]) -> None:
    """As the loop does: many calls at once, none waits for ever, none is mixed up."""
    reward = open_reward()
    alone = await _grade(reward, rows)
    found = await asyncio.gather(*(_grade(reward, rows) for _ in range(8)))
    expect(all(one == alone for one in found), "outcomes differ side by side")
    await reward.close()


async def a_cancelled_call_leaves_the_others(open_reward: Open, rows: Sequence[Trajectory]) -> None:
    """A run that drops a stale group cancels its grading."""
    reward = open_reward()
    alone = await _grade(reward, rows)
    calls = [asyncio.ensure_future(_grade(reward, rows)) for _ in range(4)]
    await asyncio.sleep(0)
    calls[0].cancel()
    rest = await asyncio.gather(*calls[1:])
    expect(all(one == alone for one in rest), "a cancellation changed others' outcomes")
    expect(await _grade(reward, rows) == alone, "after a cancellation it grades otherwise")
    await reward.close()


async def closing_twice_is_safe(open_reward: Open, rows: Sequence[Trajectory]) -> None:
    """Before any use, and after one."""
    unused, used = open_reward(), open_reward()
    await _grade(used, rows)
    for reward in (unused, used):
        await asyncio.wait_for(reward.close(), BOUND)
        await asyncio.wait_for(reward.close(), BOUND)


CONTRACT: tuple[Check, ...] = (
    one_outcome_a_row_in_order,
    groups_are_graded_side_by_side,
    a_cancelled_call_leaves_the_others,
    closing_twice_is_safe,
)
"""Every check."""
