"""Dynamic sampling beside generation that runs ahead: ages, counts and order still hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedReward, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.rollouts import FlatJudge, Rollouts
from hexpo.domain.metrics import Metrics, merge, values
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import Order, open_gate, plan, window_of
from hexpo.domain.schedule.accounting import Reason
from hexpo.domain.trajectory import Scored, Trajectory

STEPS, GROUPS = 30, 4


def score(row: Trajectory) -> Scored:
    """Two groups of three are flat."""
    return Scored(value=float(row.id) if row.group % 3 == 0 else 1.0)


async def steps(*, staleness: float, order: Order, window: int | None, budget: int) -> Rollouts:
    rollout = SimulatedRollout(lambda request: Script(length=3, seconds=1.0 + request.seed % 7))
    agent = SingleTurn(rollout=rollout, tokenizer=SimulatedTokenizer(), sampling=Sampling(), seed=0)
    player = Player(agent, SimulatedReward(score), policy=RetryPolicy(), give_up_after=3)
    limits = plan(groups=GROUPS, max_staleness=staleness, window=window_of(order, window=window))
    rollouts = Rollouts(
        SimulatedPrompts(7), player, open_gate(limits),
        samples=2, judge=FlatJudge(), filter_budget=budget,
    )  # fmt: skip
    reports: list[Metrics] = []
    feed = asyncio.create_task(rollouts.run())
    for version in range(1, STEPS + 1):
        groups = await rollouts.take(asyncio.Event())
        assert groups
        assert all(group.ticket.number % 3 == 0 for group in groups)
        await asyncio.sleep(2.0)
        rollouts.published(version)
        reports.append(rollouts.metrics())
        rollouts.fill()
    feed.cancel()
    whole = values(merge(reports))
    ledger = rollouts.gate.ledger
    assert ledger.balanced
    assert ledger.trained == STEPS * GROUPS - whole["groups/short"]
    assert ledger.dropped[Reason.FILTERED] == whole["groups/filtered"]
    for one in reports:
        require_refilled_within(budget, values(one), in_order=order is Order.SUBMISSION)
    assert len(ledger.ages) - 1 <= limits.max_age
    return rollouts


def require_refilled_within(budget: int, step: Mapping[str, float], *, in_order: bool) -> None:
    """A batch asks beyond its budget only where all that it asked for was left out: for as many
    again, as often as that is so. One of three groups in a row is kept: never in order."""
    refilled, filtered = step["groups/refilled"], step["groups/filtered"]
    kept = GROUPS - step["groups/short"]
    assert 1 <= kept <= GROUPS
    assert kept + filtered <= GROUPS + refilled
    if kept < GROUPS:  # short: the budget is spent, and all that was asked for has come
        assert refilled >= budget
        assert kept + filtered == GROUPS + refilled
    if refilled > budget:
        assert not in_order
        assert (refilled - budget) % GROUPS == 0
        assert filtered >= refilled


@pytest.mark.parametrize("budget", [0, 3, 64])
@pytest.mark.parametrize(
    ("staleness", "order", "window"),
    [
        (0.0, Order.SUBMISSION, None),
        (0.5, Order.SUBMISSION, None),
        (2.0, Order.WINDOW, 3),
        (1.0, Order.COMPLETION, None),
    ],
)
def test_filtered_groups_keep_every_account_and_bound(
    staleness: float, order: Order, window: int | None, budget: int
) -> None:
    """F1, F2, K7: a smaller step is announced, and nothing trains over age."""
    run(steps(staleness=staleness, order=order, window=window, budget=budget))
