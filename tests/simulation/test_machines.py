"""The two pure machines of the loop, played together by hypothesis: who is admitted, who runs."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hexpo.domain.schedule import (
    Dropped,
    Gate,
    Reason,
    Trained,
    admit,
    flow,
    next_group,
    open_gate,
    overdue,
    plan,
    publish,
    settle,
)
from hexpo.domain.schedule.capacity import largest_window
from hexpo.domain.schedule.flow import Event, Flow, Stage, Turn

PICK = st.integers(0, 10**6)


class Loop(RuleBasedStateMachine):
    """Groups come from the gate and are requests of an engine: each is in one place at a time."""

    gate: Gate
    flow: Flow

    @initialize(
        groups=st.integers(1, 3),
        staleness=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        width=st.integers(0, 4),
        slots=st.sampled_from([None, 1, 2, 3]),
    )
    def begin(self, groups: int, staleness: float, width: int, slots: int | None) -> None:
        """A width of 0 is order of completion."""
        window = min(width, largest_window(groups=groups, max_staleness=staleness)) or None
        self.gate = open_gate(plan(groups=groups, max_staleness=staleness, window=window))
        self.flow = Flow(slots=slots)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.finished: dict[int, None] = {}
        self.will_admit = False

    def take(self, turn: Turn) -> None:
        """Those that begin move; the rest is the engine's."""
        before, self.flow = self.flow, turn.flow
        assert not turn.begins or self.flow.stage is Stage.OPEN, "F6: one began in a pause"
        assert turn.begins <= len(self.waiting)
        begun = [self.waiting.pop(0) for _ in range(turn.begins)]
        self.running += begun
        assert self.flow.running >= before.running - 1

    # What comes

    @precondition(lambda self: self.gate.free > 0 and self.flow.stage is not Stage.CLOSED)
    @rule()
    def submit(self) -> None:
        """The gate admits, and the request waits."""
        self.gate, admission = admit(self.gate)
        self.flow = flow.arrive(self.flow)
        self.waiting.append(admission.number)
        self.will_admit = True

    @precondition(lambda self: self.will_admit)
    @rule()
    def let_in(self) -> None:
        """At the end of the instant in which it came."""
        self.will_admit = False
        self.take(flow.admit(self.flow))

    @precondition(lambda self: self.flow.is_going and self.running)
    @rule()
    def work(self) -> None:
        """A decoding step begins."""
        self.flow = flow.work(self.flow)

    @precondition(lambda self: self.flow.working > 0)
    @rule()
    def rest(self) -> None:
        """It ends."""
        self.take(flow.rest(self.flow))

    @precondition(lambda self: self.flow.is_going and self.running)
    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        """An answer is whole."""
        number = self.running.pop(pick % len(self.running))
        self.finished[number] = None
        self.take(flow.end(self.flow))

    @precondition(lambda self: self.flow.stage is Stage.CUTTING and self.running)
    @rule(pick=PICK)
    def leave_cut(self, pick: int) -> None:
        """It leaves with what it has, and comes again for the rest."""
        number = self.running.pop(pick % len(self.running))
        self.take(flow.end(self.flow))
        self.flow = flow.arrive(self.flow)
        self.waiting.append(number)
        self.will_admit = True

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        """A request that waits passes its deadline."""
        number = self.waiting.pop(pick % len(self.waiting))
        self.take(flow.withdraw(self.flow))
        self.gate = settle(self.gate, number, Dropped(Reason.FAILED))

    # What the trainer does

    @precondition(lambda self: self.gate.wanted and self.trainable is not None)
    @rule()
    def train(self) -> None:
        """The next group in its order."""
        number = self.trainable
        assert number is not None
        del self.finished[number]
        self.gate = settle(self.gate, number, Trained())

    @precondition(lambda self: self.flow.stage is not Stage.CLOSED)
    @rule(event=st.sampled_from([Event.DRAIN, Event.CUT, Event.KEEP, Event.INTERRUPT]))
    def hold(self, event: Event) -> None:
        """Any pause may overtake another one."""
        running = self.flow.running
        self.take(flow.follow(self.flow, event))
        held = self.flow.stage in (Stage.HELD, Stage.CUTTING, Stage.DRAINING)
        assert held or event is Event.INTERRUPT
        assert event is not Event.KEEP or self.flow.running == running

    @precondition(lambda self: self.flow.is_still and not self.gate.wanted)
    @rule()
    def publish(self) -> None:
        """New weights, while nothing is sampled."""
        self.gate = publish(self.gate, self.gate.version + 1)
        for number in overdue(self.gate):
            self.gate = settle(self.gate, number, Dropped(Reason.STALE))
            self.finished.pop(number, None)
            if number in self.waiting:
                self.waiting.remove(number)
                self.take(flow.withdraw(self.flow))
            elif number in self.running:
                self.running.remove(number)
                self.take(flow.end(self.flow))

    @precondition(lambda self: self.flow.stage not in (Stage.OPEN, Stage.CLOSED))
    @rule()
    def resume(self) -> None:
        """Whoever was held goes on."""
        self.take(flow.follow(self.flow, Event.RESUME))

    # What holds at every moment

    @property
    def trainable(self) -> int | None:
        return next_group(self.gate, self.finished)

    @invariant()
    def each_group_is_in_one_place_and_all_are_counted(self) -> None:
        """F2."""
        if not hasattr(self, "flow"):
            return
        places = [*self.waiting, *self.running, *self.finished]
        assert len(set(places)) == len(places) == self.gate.alive
        assert all(self.gate.is_alive(number) for number in places)
        assert self.gate.ledger.balanced
        assert self.gate.free >= 0
        assert (self.flow.waiting, self.flow.running) == (len(self.waiting), len(self.running))

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """F4: who could begin has begun; a pause that could be complete is."""
        if not hasattr(self, "flow"):
            return
        slots = self.flow.slots
        assert slots is None or len(self.running) <= slots
        if self.flow.stage is Stage.OPEN and not self.will_admit:
            assert not self.waiting or len(self.running) == slots
        if self.flow.stage in (Stage.DRAINING, Stage.CUTTING):
            assert self.running
        assert not (self.flow.is_still and self.flow.working)

    @invariant()
    def nothing_is_trained_over_age(self) -> None:
        """F1."""
        if hasattr(self, "flow"):
            assert len(self.gate.ledger.ages) <= self.gate.plan.max_age + 1

    def teardown(self) -> None:
        """F4, progress: from anywhere, what runs ends, all is trained, and a version follows."""
        if not hasattr(self, "flow"):
            return
        while self.flow.working:
            self.rest()
        if self.flow.stage is not Stage.OPEN:
            self.resume()
        for _ in range(200):
            if self.gate.free:
                self.submit()
            self.let_in()
            while self.running:
                self.finish(0)
            while self.gate.wanted and self.trainable is not None:
                self.train()
            if not self.gate.wanted:
                break
        assert not self.gate.wanted, "progress: no publication can be filled"
        before = self.gate.version
        self.hold(Event.DRAIN)
        self.publish()
        assert self.gate.version == before + 1


@pytest.mark.slow
def test_admission_and_flow_keep_every_promise_in_any_order() -> None:
    """F1, F2, F4, F6: 500 walks of 40 moves; a failure is shrunk to the shortest one."""
    run_state_machine_as_test(
        Loop, settings=settings(max_examples=500, stateful_step_count=40, deadline=None)
    )


def _forgets_who_waits(state: Flow) -> Turn:
    return Turn(attrs.evolve(state, running=state.running - 1))


def _stays_in_the_queue(state: Flow) -> Turn:
    return Turn(state)


MOVES = {"submit", "let_in", "work", "rest", "finish", "leave_cut", "give_up", "train", "hold"}
SMALL = settings(
    max_examples=500,
    stateful_step_count=15,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("end", _forgets_who_waits), ("withdraw", _stays_in_the_queue)],
    ids=["a lost wake-up", "a ghost in the queue"],
)
def test_a_mistake_in_the_flow_is_found_and_shrunk(
    monkeypatch: pytest.MonkeyPatch, name: str, mistake: Callable[[Flow], Turn]
) -> None:
    """The machine can fail, and shows the few moves that are needed."""
    monkeypatch.setattr(flow, name, mistake)
    with pytest.raises(AssertionError) as failure:
        run_state_machine_as_test(Loop, settings=SMALL)
    moves = re.findall(r"^state\.(\w+)\(", "\n".join(failure.value.__notes__), re.MULTILINE)
    assert moves[0] == "begin"
    assert len([move for move in moves if move in MOVES]) <= 9
