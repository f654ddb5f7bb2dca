"""The gate under random schedules: age, order, slots and accounting, at every moment."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest
from hypothesis import given, settings

from hexpo.domain.errors import IllegalTransition
from hexpo.domain.schedule import (
    Dropped,
    Gate,
    Ledger,
    Plan,
    Reason,
    Requeued,
    Trained,
    admit,
    open_gate,
    overdue,
    plan,
    publish,
    settle,
)
from hexpo.domain.schedule.capacity import largest_window, worst_age
from hexpo.entrypoints.testing.strategies import Schedule, schedules


@attrs.define
class Walk:
    """A gate and a second, naive account of it: dicts and lists instead of masks."""

    gate: Gate
    stamps: dict[int, int] = attrs.field(factory=dict)
    finished: list[int] = attrs.field(factory=list)
    requeued: set[int] = attrs.field(factory=set)
    ends: dict[int, str] = attrs.field(factory=dict)
    unpublished: int = 0
    worst: int = 0

    def moves(self) -> list[Callable[[int], None]]:
        """What is possible now."""
        running = [number for number in self.stamps if number not in self.finished]
        possible: list[Callable[[int], None]] = []
        if self.gate.free:
            possible += [self.admit] * 3
        if running:
            possible += [lambda pick: self.finished.append(running[pick % len(running)])] * 3
        if self.trainable():
            possible += [self.train] * 4
        if not self.gate.wanted:
            possible += [self.publish] * 2
        if self.stamps:
            possible += [self.drop, self.requeue]
        return possible

    def trainable(self) -> list[int]:
        window, oldest = self.gate.plan.window, min(self.stamps, default=0)
        return [number for number in self.finished if window is None or number < oldest + window]

    def admit(self, _: int) -> None:
        self.gate, admission = admit(self.gate)
        assert admission.number == len(self.stamps) + len(self.ends)
        self.stamps[admission.number] = self.gate.version

    def train(self, pick: int) -> None:
        choice = self.trainable()
        number = choice[pick % len(choice)]
        self.worst = max(self.worst, self.gate.version - self.stamps[number])
        self.gate = settle(self.gate, number, Trained())
        self.unpublished += 1
        self.leave(number, "trained")

    def drop(self, pick: int) -> None:
        number = list(self.stamps)[pick % len(self.stamps)]
        self.gate = settle(self.gate, number, Dropped(Reason.FAILED))
        self.leave(number, "dropped")

    def requeue(self, pick: int) -> None:
        number = list(self.stamps)[pick % len(self.stamps)]
        self.gate = settle(self.gate, number, Requeued())
        self.finished = [each for each in self.finished if each != number]
        self.requeued.add(number)

    def publish(self, _: int) -> None:
        self.gate = publish(self.gate, self.gate.version + 1)
        self.unpublished = 0
        late = overdue(self.gate)
        limit = self.gate.version - self.gate.plan.max_age
        assert late == [number for number, stamp in self.stamps.items() if stamp < limit]
        assert not late or self.gate.plan.window is None
        for number in late:
            self.gate = settle(self.gate, number, Dropped(Reason.STALE))
            self.leave(number, "stale")

    def leave(self, number: int, end: str) -> None:
        del self.stamps[number]
        self.finished = [each for each in self.finished if each != number]
        self.requeued.discard(number)
        self.ends[number] = end

    def check(self) -> None:
        """Both accounts agree; nothing is lost, no slot is free that should not be."""
        gate, ledger = self.gate, self.gate.ledger
        assert ledger.balanced
        assert ledger.issued == len(self.stamps) + len(self.ends)
        assert gate.alive == len(self.stamps)
        assert ledger.requeued == len(self.requeued)
        ends = list(self.ends.values())
        assert ledger.trained == ends.count("trained")
        assert ledger.dropped.get(Reason.STALE, 0) == ends.count("stale")
        assert ledger.dropped.get(Reason.FAILED, 0) == ends.count("dropped")
        assert gate.free == gate.plan.capacity - len(self.stamps) - self.unpublished >= 0
        assert gate.oldest == min(self.stamps, default=gate.next_number)
        assert {number: gate.stamp(number) for number in self.stamps} == self.stamps
        assert sum(age * n for age, n in enumerate(ledger.ages)) >= self.worst


def walked(gate_plan: Plan, choices: Sequence[int]) -> Walk:
    walk = Walk(open_gate(gate_plan))
    for choice in choices:
        moves = walk.moves()
        moves[choice % len(moves)](choice // len(moves))
        walk.check()
    return walk


def unrefused(groups: int, max_staleness: float, window: int | None) -> Plan:
    """The plan, with the window narrowed to the widest that fits."""
    if window is not None and max_staleness > 0:
        window = min(window, largest_window(groups=groups, max_staleness=max_staleness))
    return plan(groups=groups, max_staleness=max_staleness, window=window)


@given(schedule=schedules())
@settings(max_examples=150)
def test_no_token_trains_above_the_bound_and_everything_adds_up(schedule: Schedule) -> None:
    """F1, F2: any order of events, drops and re-queues included."""
    gate_plan = unrefused(schedule.groups, schedule.max_staleness, schedule.window)
    walk = walked(gate_plan, schedule.choices)
    assert walk.worst <= gate_plan.max_age <= schedule.max_staleness + 1


def random_settings(seed: int) -> Iterator[tuple[Plan, list[int]]]:
    draw = random.Random(seed)
    while True:
        window = draw.choice((1, 1, 2, 3, 5, None))
        staleness = draw.choice((0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0))
        gate_plan = unrefused(draw.randint(1, 5), staleness, window)
        yield gate_plan, [draw.randrange(10**6) for _ in range(150)]


def test_a_seeded_search_finds_no_schedule_that_breaks_a_property() -> None:
    """F1, F2, X2, X3: one explorer, all properties, all orders."""
    versions = 0
    for gate_plan, choices in itertools.islice(random_settings(seed=7), 400):
        walk = walked(gate_plan, choices)
        assert walk.worst <= gate_plan.max_age
        if gate_plan.capacity == gate_plan.groups:
            assert walk.worst == 0
        versions += walk.gate.version
    assert versions > 1000


def search(gate_plan: Plan, *, tries: int, seed: int = 0) -> int:
    """The highest age that a greedy adversary reaches: it keeps the line full, finishes groups at
    random and trains the youngest that it may."""
    draw, worst = random.Random(seed), 0
    for _ in range(tries):
        gate, alive, finished = open_gate(gate_plan), dict[int, int](), list[int]()
        while gate.version < 40:
            for _ in range(gate.free):
                gate, admission = admit(gate)
                alive[admission.number] = admission.version
            ready = [number for number in finished if gate.may_train(number)]
            if not gate.wanted:
                gate = publish(gate, gate.version + 1)
            elif ready and draw.random() < 0.7:
                number = max(ready) if draw.random() < 0.8 else min(ready)
                worst = max(worst, gate.version - alive.pop(number))
                finished.remove(number)
                gate = settle(gate, number, Trained())
            elif waiting := [number for number in alive if number not in finished]:
                finished.append(draw.choice(waiting))
    return worst


@pytest.mark.parametrize(
    ("groups", "staleness", "window", "bound"),
    [(1, 1, 2, 2), (2, 1, 3, 2), (3, 2, 5, 4), (4, 1, 5, 2), (1, 2, 3, 4), (4, 1, 1, 1)],
)
def test_the_bound_on_age_holds_and_is_reached(
    groups: int, staleness: int, window: int, bound: int
) -> None:
    """O26: at full capacity, S + ceil((w - 1) / P)."""
    capacity = (staleness + 1) * groups
    assert worst_age(groups=groups, capacity=capacity, window=window) == bound
    full = Plan(groups=groups, capacity=capacity, window=window, max_age=99)
    assert search(full, tries=12) == bound


@pytest.mark.parametrize("window", [1, 2, 3, 9])
def test_on_policy_is_on_policy_for_any_window(window: int) -> None:
    """O26's row S 0: all P alive groups must be used before a publication."""
    gate_plan = plan(groups=4, max_staleness=0, window=window)
    assert gate_plan.capacity == 4
    assert search(gate_plan, tries=4) == 0


def test_completion_without_dropping_bounds_nothing() -> None:
    """X3: the reason why overdue groups are dropped at each publication."""
    loose = Plan(groups=4, capacity=8, window=None, max_age=99)
    assert search(loose, tries=12) > 3


def test_slots_that_came_back_inside_a_step_would_break_the_bound() -> None:
    """X2: P 4, S 1, w 1 reaches age 2 if each trained group frees its slot at once."""
    gate, ages = open_gate(Plan(groups=4, capacity=8, window=1, max_age=99)), []
    for _ in range(40):
        while gate.free:
            gate, _ = admit(gate)
        ages.append(gate.version - gate.stamp(gate.oldest))
        gate = settle(gate, gate.oldest, Trained())
        trained = gate.unpublished
        gate = attrs.evolve(gate, unpublished=0)  # the fault
        if (gate.ledger.trained % 4) == 0:
            gate = publish(gate, gate.version + 1, short=True)
        assert trained == 1
    assert max(ages) == 2


def test_a_slot_comes_back_at_publication_and_at_once_for_a_dropped_group() -> None:
    """X2."""
    gate = open_gate(plan(groups=2, max_staleness=0))
    gate, first = admit(gate)
    gate, second = admit(gate)
    assert gate.free == 0
    gate = settle(gate, first.number, Trained())
    assert gate.free == 0
    gate = settle(gate, second.number, Dropped(Reason.FILTERED))
    assert gate.free == 1
    gate, third = admit(gate)
    gate = settle(gate, third.number, Trained())
    assert (gate.free, gate.wanted) == (0, 0)
    gate = publish(gate, 1)
    assert (gate.free, gate.version) == (2, 1)


def test_a_requeued_group_keeps_slot_and_stamp_and_its_age_counts() -> None:
    """X2: with a new stamp its old tokens would train at age 5 at bound 1."""
    gate = open_gate(plan(groups=1, max_staleness=1, window=None))
    gate, old = admit(gate)
    gate, other = admit(gate)
    gate = settle(gate, old.number, Requeued())
    assert (gate.free, gate.stamp(old.number)) == (0, 0)
    assert (gate.ledger.requeued, gate.ledger.in_flight, gate.ledger.requeues) == (1, 1, 1)
    gate = publish(settle(gate, other.number, Trained()), 1)
    gate, other = admit(gate)
    assert overdue(gate) == []
    assert gate.may_train(old.number)
    gate = publish(settle(gate, other.number, Trained()), 2)
    assert overdue(gate) == [old.number]
    assert not gate.may_train(old.number)
    with pytest.raises(IllegalTransition, match="2 versions old and 1 are allowed"):
        settle(gate, old.number, Trained())
    gate = settle(gate, old.number, Dropped(Reason.STALE))
    assert gate.ledger == Ledger(
        issued=3, ages=(2,), dropped={Reason.STALE: 1}, requeues=1, versions=2
    )


def test_stamps_are_kept_from_the_oldest_alive_groups_on() -> None:
    """X2: no longer: a long run would else carry one more of each version."""
    gate = open_gate(plan(groups=1, max_staleness=1, window=None))
    gate, first = admit(gate)
    gate, second = admit(gate)
    gate = publish(settle(gate, first.number, Trained()), 1)
    gate, third = admit(gate)
    assert [run.version for run in gate.runs] == [0, 1]
    gate = settle(gate, second.number, Trained())
    assert [run.version for run in gate.runs] == [1]
    assert gate.stamp(third.number) == 1


def test_what_the_gate_does_not_expect_is_refused() -> None:
    """STYLE: no silent no-op."""
    gate, first = admit(open_gate(plan(groups=2, max_staleness=0)))
    gate, second = admit(gate)
    with pytest.raises(IllegalTransition, match="no slot is free: 2 groups are alive and 0"):
        admit(gate)
    with pytest.raises(IllegalTransition, match="group 1 may not pass group 0"):
        settle(gate, second.number, Trained())
    gate = settle(gate, first.number, Trained())
    for end in (Trained(), Dropped(Reason.STALE), Requeued()):
        for number in (first.number, 5, -1):
            with pytest.raises(IllegalTransition, match=f"group {number} cannot end"):
                settle(gate, number, end)
    with pytest.raises(IllegalTransition, match="1 groups of 2"):
        publish(gate, 1)
    with pytest.raises(IllegalTransition, match="version 2 cannot be published after 0"):
        publish(gate, 2, short=True)
    assert publish(gate, 1, short=True).version == 1
    with pytest.raises(IllegalTransition, match="the ledger counts 1 alive groups"):
        open_gate(gate.plan, ledger=gate.ledger)


def test_earlier_gates_stay_as_they_were() -> None:
    """The gate is a value."""
    before = open_gate(plan(groups=1, max_staleness=1))
    after, admission = admit(before)
    settle(after, admission.number, Trained())
    assert (before.alive, after.alive, after.unpublished) == (0, 1, 0)


def test_an_event_costs_the_same_at_any_size() -> None:
    """Y4: far below 50 microseconds, 6,250 groups (100,000 trajectories) alive."""
    gate = open_gate(plan(groups=3125, max_staleness=1, window=None))
    while gate.free:
        gate, _ = admit(gate)
    started = time.perf_counter()
    for number in range(2000, 3000):
        gate = settle(gate, number, Dropped(Reason.FILTERED))
        gate, _ = admit(gate)
    each = (time.perf_counter() - started) / 2000
    assert each < 250e-6  # five times the bar: the machine may be busy
