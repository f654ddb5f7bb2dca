"""A batch that is trained part by part, each as soon as its groups are there."""

from __future__ import annotations

import pytest

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.domain.schedule import Order
from hexpo.domain.schedule.capacity import cut_evenly
from hexpo.infrastructure.forecast import Choice, Costs, Workload, forecast

WORK = Workload(
    groups=8,
    samples=2,
    updates=4,
    lengths=Lengths(quantile=LogNormal(median=20, spread=1.0), longest=64),
)
COSTS = Costs(
    replicas=4,
    rollout=RolloutSpeed(token_seconds=0.1, request_seconds=0.0, slots=8),
    training=TrainingCost(token_seconds=0.01),
)


@pytest.mark.parametrize("staleness", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("order", [Order.SUBMISSION, Order.COMPLETION])
def test_parts_hide_training_behind_the_tail_and_keep_the_bound(
    staleness: float, order: Order
) -> None:
    """F1, O26: slots come back at the publication, so no token passes its age; the step is
    shorter than that of a batch that waits to be whole."""
    chosen = Choice(max_staleness=staleness, order=order)
    streamed = Choice(max_staleness=staleness, order=order, parts=4)
    whole = forecast(WORK, COSTS, chosen, steps=6, warmup=3)
    parts = forecast(WORK, COSTS, streamed, steps=6, warmup=3)
    assert parts.step_seconds < whole.step_seconds + 1e-9
    assert parts.age_max <= -(-staleness // 1)
    assert staleness or parts.age_max == 0


def test_parts_are_even_and_none_is_empty() -> None:
    """The larger ones first, as a whole batch is cut."""
    assert cut_evenly(10, 4) == [3, 3, 2, 2]
    assert cut_evenly(2, 4) == [1, 1]
    assert cut_evenly(5, 1) == [5]
