"""Which finished group is trained next, and whom each order favours."""

from __future__ import annotations

import heapq
import random

import pytest

from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule import (
    Dropped,
    Gate,
    Order,
    Reason,
    Trained,
    admit,
    next_group,
    open_gate,
    overdue,
    plan,
    publish,
    settle,
    window_of,
)


def opened(window: int | None, *, alive: int = 6, max_staleness: float = 2) -> Gate:
    gate = open_gate(plan(groups=3, max_staleness=max_staleness, window=window))
    for _ in range(alive):
        gate, _ = admit(gate)
    return gate


@pytest.mark.parametrize(
    ("window", "finished", "want"),
    [
        (1, [3, 1], None),
        (1, [3, 0], 0),
        (3, [5, 2, 1], 1),
        (3, [5, 3, 4], None),
        (3, [1, 2, 3, 4, 5], 1),
        (None, [5, 0], 5),
        (None, [], None),
        (4, [], None),
    ],
)
def test_the_order_says_who_is_next(
    window: int | None, finished: list[int], want: int | None
) -> None:
    """O26: only numbers below oldest + w; without a window the first to finish."""
    assert next_group(opened(window), finished) == want


def test_the_window_moves_when_the_oldest_group_ends() -> None:
    """O26: it is anchored at the oldest group alive."""
    gate = opened(2)
    assert next_group(gate, {2}) is None
    assert next_group(settle(gate, 1, Trained()), {2}) is None
    assert next_group(settle(gate, 0, Dropped(Reason.FAILED)), {2}) == 2


def test_a_window_belongs_to_its_order() -> None:
    """M2: a width that would do nothing is refused."""
    assert window_of(Order.SUBMISSION) == 1
    assert window_of(Order.COMPLETION) is None
    assert window_of(Order.WINDOW, window=5) == 5
    for order, window in ((Order.SUBMISSION, 3), (Order.COMPLETION, 3), (Order.WINDOW, None)):
        with pytest.raises(WrongValue, match="a window belongs to order window"):
            window_of(order, window=window)


def simulated(
    window: int | None, *, groups: int, staleness: float, lengths: list[int], steps: int
) -> tuple[Gate, list[int]]:
    """A tiny simulator: group n takes lengths[n] ticks; gives the lengths that were trained."""
    gate = open_gate(plan(groups=groups, max_staleness=staleness, window=window))
    clock, running = 0, list[tuple[int, int]]()
    finished, trained = dict[int, None](), list[int]()
    while gate.version < steps:
        while gate.free:
            gate, admission = admit(gate)
            heapq.heappush(running, (clock + lengths[admission.number], admission.number))
        number = next_group(gate, finished)
        if not gate.wanted:
            gate = publish(gate, gate.version + 1)
            for late in overdue(gate):
                gate = settle(gate, late, Dropped(Reason.STALE))
                finished.pop(late, None)
                running = [entry for entry in running if entry[1] != late]
                heapq.heapify(running)
        elif number is not None:
            del finished[number]
            gate = settle(gate, number, Trained())
            trained.append(lengths[number])
        else:
            clock, done = heapq.heappop(running)
            finished[done] = None
    return gate, trained


@pytest.mark.parametrize("staleness", [0, 1])
def test_fast_and_slow_prompts_are_trained_alike_in_order_of_submission(staleness: int) -> None:
    """O15: even prompts take 1 tick, odd ones 5; 20 steps of 2 groups all complete."""
    lengths = [5 if number % 2 else 1 for number in range(100)]
    gate, trained = simulated(1, groups=2, staleness=staleness, lengths=lengths, steps=20)
    assert len(trained) == 40
    assert gate.ledger.balanced
    assert len(gate.ledger.ages) <= staleness + 1
    assert abs(trained.count(1) - trained.count(5)) <= gate.alive
    assert gate.ledger.lost == 0


def test_order_of_completion_favours_the_fast_and_says_so() -> None:
    """O15.3, F3: the difference is what was dropped as stale or is still alive."""
    lengths = [5 if number % 2 else 1 for number in range(400)]
    gate, trained = simulated(None, groups=2, staleness=1, lengths=lengths, steps=20)
    assert trained.count(1) > 1.5 * trained.count(5)
    odd_one = gate.ledger.issued % 2  # one more even prompt than odd ones was issued
    others = gate.alive + gate.ledger.dropped[Reason.STALE]
    assert trained.count(1) - trained.count(5) <= others + odd_one
    assert len(gate.ledger.ages) <= 2


def test_one_step_of_eight_out_of_sixty_four_shows_the_bias() -> None:
    """O26: lengths uniform on 1..100; far below 50.5 by completion, unbiased by submission."""
    means = {}
    for window in (None, 1):
        draw, found = random.Random(3), list[int]()
        for _ in range(60):
            lengths = [draw.randint(1, 100) for _ in range(200)]
            _, trained = simulated(window, groups=8, staleness=7, lengths=lengths, steps=1)
            found += trained
        means[window] = sum(found) / len(found)
    assert means[None] < 12
    assert abs(means[1] - 50.5) < 5
