"""The pause machine: every order of events, and every pair of stage and event."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import IllegalTransition
from hexpo.domain.schedule.flow import (
    TABLE,
    Event,
    Flow,
    Stage,
    Turn,
    admit,
    arrive,
    end,
    follow,
    rest,
    withdraw,
    work,
)

PAUSES = (Event.DRAIN, Event.CUT, Event.KEEP)

MOVES: dict[str, Callable[[Flow], Turn]] = {
    "arrive": lambda flow: Turn(arrive(flow)),
    "admit": admit,
    "withdraw": withdraw,
    "end": end,
    "work": lambda flow: Turn(work(flow)),
    "rest": rest,
    **{
        event.value: (lambda flow, event=event: follow(flow, event))  # type: ignore[misc]
        for event in Event
    },
}


def may(flow: Flow, move: str) -> bool:
    """Whether an engine could do it now."""
    if move in ("withdraw", "end", "rest"):
        count = {"withdraw": flow.waiting, "end": flow.running, "rest": flow.working}[move]
        return count > 0
    if move == "work":
        return flow.is_going and flow.running > flow.working
    return flow.stage is not Stage.CLOSED or move == "close"


orders = st.lists(st.sampled_from(sorted(MOVES)), max_size=60)
slots = st.none() | st.integers(1, 3)


@given(orders, slots)
def test_nothing_begins_while_paused_and_no_one_is_lost(
    order: list[str], slots: int | None
) -> None:
    """F2, F6: each request is counted once; none begins outside `open`; slots are kept."""
    flow = Flow(slots=slots)
    arrived = begun = gone = 0
    for move in order:
        if not may(flow, move):
            continue
        turn = MOVES[move](flow)
        arrived += move == "arrive"
        gone += move in ("withdraw", "end")
        begun += turn.begins
        assert turn.begins == 0 or turn.flow.stage is Stage.OPEN
        assert turn.cuts == (move in ("cut", "interrupt", "close"))
        flow = turn.flow
        assert flow.running + flow.waiting == arrived - gone
        assert min(flow.running, flow.waiting, flow.working) >= 0
        assert slots is None or flow.running <= slots
        if move != "arrive" and flow.stage is Stage.OPEN:  # whoever waits has no room
            assert flow.waiting == 0 or flow.running == slots
    assert begun <= arrived


@given(orders, slots, st.sampled_from([Event.KEEP, Event.CUT]))
def test_a_synchronisation_is_complete_when_the_work_at_hand_is_done(
    order: list[str], slots: int | None, event: Event
) -> None:
    """No trajectory has to end by itself, whatever happened before, a drain included."""
    flow = Flow(slots=slots)
    for move in order:
        if may(flow, move) and move != "close":
            flow = MOVES[move](flow).flow
    turn = follow(flow, event)
    flow = turn.flow
    while flow.working:
        flow = rest(flow).flow
    if flow.stage is Stage.CUTTING:  # the engine hands out what it has: no step more
        for _ in range(flow.running):
            flow = end(flow).flow
    assert flow.is_still
    held = flow.running
    waiting = flow.waiting
    resumed = follow(flow, Event.RESUME)
    room = waiting if slots is None else min(waiting, slots - held)
    assert resumed.begins == room
    assert resumed.flow.is_going


@given(orders, slots)
def test_a_drain_is_complete_when_those_that_run_have_ended(
    order: list[str], slots: int | None
) -> None:
    """None that waits slips in, and an interruption cuts it short."""
    flow = Flow(slots=slots)
    for move in order:
        if may(flow, move) and move != "close":
            flow = MOVES[move](flow).flow
    flow = follow(flow, Event.DRAIN).flow
    waiting = flow.waiting
    while flow.working:
        flow = rest(flow).flow
    interrupted = follow(flow, Event.INTERRUPT)
    assert interrupted.cuts
    assert interrupted.flow.stage in (Stage.CUTTING, Stage.HELD)
    for left in range(flow.running, 0, -1):
        assert not flow.is_still
        assert flow.running == left
        flow = end(flow).flow
    assert flow.is_still
    assert flow.waiting == waiting


@given(orders, slots, st.sampled_from(PAUSES))
def test_a_pause_and_an_arrival_commute(order: list[str], slots: int | None, pause: Event) -> None:
    """In one instant, who came first makes no difference."""
    flow = Flow(slots=slots)
    for move in order:
        if may(flow, move) and move != "close":
            flow = MOVES[move](flow).flow
    assert follow(arrive(flow), pause).flow == arrive(follow(flow, pause).flow)


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("stage", Stage)
def test_every_pair_of_stage_and_event_is_in_the_table_or_an_error(
    stage: Stage, event: Event
) -> None:
    """Only closing again follows closing; a pause twice is the same as once."""
    flow = Flow(stage=stage, running=1)
    if (stage, event) not in TABLE:
        assert stage is Stage.CLOSED
        with pytest.raises(IllegalTransition, match=event.value):
            follow(flow, event)
        return
    once = follow(flow, event)
    if once.flow.stage is not Stage.CUTTING:
        assert follow(once.flow, event) == once
    assert once.flow.stage is TABLE[stage, event]


@pytest.mark.parametrize("move", [withdraw, end, rest])
def test_what_never_came_cannot_leave(move: Callable[[Flow], Turn]) -> None:
    """An event that the state does not expect is an error, no silent nothing."""
    with pytest.raises(IllegalTransition):
        move(Flow())
    with pytest.raises(IllegalTransition):
        arrive(attrs.evolve(Flow(), stage=Stage.CLOSED))
    with pytest.raises(IllegalTransition):
        work(attrs.evolve(Flow(), stage=Stage.CUTTING))
