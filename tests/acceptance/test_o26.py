"""O26: bounded reordering keeps the age bound. Every schedule is tried, not a sample of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule import Order, plan
from hexpo.domain.schedule.capacity import largest_window, worst_age
from hexpo.entrypoints.testing import faults
from hexpo.entrypoints.testing.explorer import check
from hexpo.entrypoints.testing.scenarios import Scenario

State = tuple[tuple[int, ...], int]
"""Age of each group from the oldest alive one on (-1: it has ended), and how many were trained
since the last publication."""


def worst(groups: int, capacity: int, window: int, *, slot_at_training: bool = False) -> int:
    """The highest age at use over all schedules: whichever group within the window finishes
    next is trained next, and free slots are filled at once."""
    start = _filled((), 0, capacity)
    seen, stack, found = {start}, [start], 0
    while stack:
        ages, unpublished = stack.pop()
        for place in range(min(window, len(ages))):
            if ages[place] < 0:
                continue
            found = max(found, ages[place])
            left = (*ages[:place], -1, *ages[place + 1 :])
            after = _after(left, unpublished + 1, groups, capacity, slot_at_training)
            if after not in seen:
                seen.add(after)
                stack.append(after)
    return found


def _after(
    ages: tuple[int, ...], unpublished: int, groups: int, capacity: int, at_training: bool
) -> State:
    while ages and ages[0] < 0:
        ages = ages[1:]
    if at_training and unpublished < groups:
        return _filled(ages, 0, capacity)[0], unpublished
    if unpublished == groups:
        ages, unpublished = tuple(age + (age >= 0) for age in ages), 0
    return _filled(ages, 0 if at_training else unpublished, capacity)[0], unpublished


def _filled(ages: tuple[int, ...], unpublished: int, capacity: int) -> State:
    alive = sum(age >= 0 for age in ages)
    return (*ages, *[0] * (capacity - alive - unpublished)), unpublished


ROWS = [(1, 1, 2, 2), (2, 1, 3, 2), (3, 2, 5, 4), (4, 1, 5, 2), (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("groups", "staleness", "window", "bound"), ROWS, ids=lambda value: str(value)
)
def test_each_row_is_the_worst_of_all_schedules(
    groups: int, staleness: int, window: int, bound: int
) -> None:
    """O26: S + ceil((w - 1) / P), and it is reached."""
    capacity = (staleness + 1) * groups
    assert bound == staleness + -(-(window - 1) // groups)
    assert worst(groups, capacity, window) == bound


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("staleness", [1, 2])
def test_a_window_of_one_has_the_staleness_as_its_bound(groups: int, staleness: int) -> None:
    """O26: w 1."""
    assert worst(groups, (staleness + 1) * groups, 1) == staleness


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_at_staleness_zero_the_age_is_zero_for_any_window(groups: int, window: int) -> None:
    """O26, row S 0, any w: 0. All P alive groups must be used before a publication."""
    chosen = plan(groups=groups, max_staleness=0, window=window)
    assert chosen.capacity == groups
    assert worst(groups, groups, window) == 0


def test_slots_that_come_back_at_training_break_the_bound_by_one() -> None:
    """O26, X2: P 4, S 1, w 1, mini-batches of one group reach 2; at publication they reach 1."""
    assert worst(4, 8, 1, slot_at_training=True) == 2
    assert worst(4, 8, 1) == 1
    assert worst(4, 4, 1, slot_at_training=True) == 1
    assert worst(4, 4, 1) == 0


def settings() -> Iterator[tuple[int, int, int]]:
    """P, S, w that are small enough to try every schedule."""
    for groups, staleness in itertools.product((1, 2, 3), (1, 2)):
        for window in range(1, min(6, (staleness + 1) * groups) + 1):
            yield groups, staleness, window


@pytest.mark.parametrize(("groups", "staleness", "window"), list(settings()))
def test_the_formula_is_the_worst_of_all_schedules(
    groups: int, staleness: int, window: int
) -> None:
    """O26: floor((B + w - 2) / P); no schedule passes it, and one reaches it."""
    capacity = (staleness + 1) * groups
    formula = worst_age(groups=groups, capacity=capacity, window=window)
    assert worst(groups, capacity, window) == formula


@pytest.mark.parametrize("staleness", [0.0, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_gate_lowers_its_capacity_for_a_window_or_refuses_it(
    groups: int, staleness: float
) -> None:
    """O26: K holds with the window, or the pair is refused with the largest that fits."""
    largest = largest_window(groups=groups, max_staleness=staleness)
    for window in range(1, largest + 1):
        chosen = plan(groups=groups, max_staleness=staleness, window=window)
        assert worst(groups, chosen.capacity, window) <= chosen.max_age
    if chosen.capacity > groups:
        with pytest.raises(WrongValue, match=f"largest window that fits is {largest}"):
            plan(groups=groups, max_staleness=staleness, window=largest + 1)


@pytest.mark.parametrize("staleness", [0.0, 1.0, 2.0])
@pytest.mark.parametrize(
    ("order", "window"),
    [(Order.SUBMISSION, None), (Order.WINDOW, 1), (Order.WINDOW, 2), (Order.COMPLETION, None)],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_no_token_of_a_run_passes_the_bound(
    order: Order, window: int | None, staleness: float, parts: int
) -> None:
    """O26, F1: order x window x S through the loop, whole batches and mini-batches as they come;
    the run itself checks window, slots, ages and accounts."""
    if order is Order.WINDOW and not staleness:
        order, window = Order.SUBMISSION, None  # every window is the same there
    scenario = Scenario(
        seed=11, groups=3, steps=12, staleness=staleness, order=order, window=window, parts=parts,
        tail=1.5, slots=2, step_seconds=0.3,
    )  # fmt: skip
    [world] = check(scenario)
    oldest = [numbers["age/max"] for _, numbers in world.tracker.reports if "age/max" in numbers]
    assert max(oldest) <= staleness
    assert max(oldest) > 0 or not staleness
    passed = sum(numbers.get("bias/passed", 0) for _, numbers in world.tracker.reports)
    assert (passed > 0) == (order is Order.COMPLETION or (window or 1) > 1)


def test_order_of_completion_favours_the_fast_and_order_of_submission_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O26: one step of 8 of 64 alive groups, lengths uniform on 1..60 (mean 30.5). By completion
    the eight fastest train, 61 x 4.5 / 65 = 4.2 on average; by submission the first eight."""
    monkeypatch.setattr(faults, "_length", lambda scenario, request: 1 + request.seed % 60)
    means = {}
    for order in (Order.COMPLETION, Order.SUBMISSION):
        lengths, passed = list[int](), list[float]()
        for seed in range(25):
            scenario = Scenario(
                seed=seed, groups=8, samples=1, steps=1, staleness=7.0, order=order, slots=64,
                whole=False,
            )  # fmt: skip
            [world] = check(scenario)
            lengths += [len(one.tokens) - one.prompt_length for one in world.tracker.records]
            passed += [numbers["bias/passed"] for _, numbers in world.tracker.reports]
        means[order] = sum(lengths) / len(lengths)
        assert (max(passed) > 10) == (order is Order.COMPLETION)
        assert (max(passed) == 0) == (order is Order.SUBMISSION)
    assert means[Order.COMPLETION] == pytest.approx(4.2, abs=0.5)
    assert means[Order.SUBMISSION] == pytest.approx(30.5, abs=4)
