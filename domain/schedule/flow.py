"""Who may generate, and when a pause is complete: one small state machine.

All of it is pure. A decision and its change come out of the same call: a request that may begin is
already counted as running in the flow that is returned, so no answer can be old when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import attrs

from hexpo.domain.errors import IllegalTransition


class Stage(Enum):
    """What an engine does with requests."""

    OPEN = "open"
    """They begin and go on."""
    DRAINING = "draining"
    """None begins; those that run go on to their ends."""
    CUTTING = "cutting"
    """None begins; those that run are on their way out with what they have."""
    HELD = "held"
    """None begins and none goes on; those that run are kept where they are."""
    CLOSED = "closed"
    """For good."""


class Event(Enum):
    """What is asked of an engine."""

    DRAIN = "drain"
    """Pause when those that run have ended."""
    CUT = "cut"
    """Pause now; those that run end as they are."""
    KEEP = "keep"
    """Pause now; those that run stay."""
    INTERRUPT = "interrupt"
    """End all that run as they are. It is no pause."""
    RESUME = "resume"
    """Go on."""
    CLOSE = "close"
    """End everything."""


TABLE: Mapping[tuple[Stage, Event], Stage] = {
    (Stage.OPEN, Event.DRAIN): Stage.DRAINING,
    (Stage.OPEN, Event.CUT): Stage.CUTTING,
    (Stage.OPEN, Event.KEEP): Stage.HELD,
    (Stage.OPEN, Event.INTERRUPT): Stage.OPEN,
    (Stage.OPEN, Event.RESUME): Stage.OPEN,
    (Stage.OPEN, Event.CLOSE): Stage.CLOSED,
    (Stage.DRAINING, Event.DRAIN): Stage.DRAINING,
    (Stage.DRAINING, Event.CUT): Stage.CUTTING,  # a synchronisation does not wait for a drain
    (Stage.DRAINING, Event.KEEP): Stage.HELD,
    (Stage.DRAINING, Event.INTERRUPT): Stage.CUTTING,
    (Stage.DRAINING, Event.RESUME): Stage.OPEN,
    (Stage.DRAINING, Event.CLOSE): Stage.CLOSED,
    (Stage.CUTTING, Event.DRAIN): Stage.CUTTING,  # what was cut cannot be kept any more
    (Stage.CUTTING, Event.CUT): Stage.CUTTING,
    (Stage.CUTTING, Event.KEEP): Stage.CUTTING,
    (Stage.CUTTING, Event.INTERRUPT): Stage.CUTTING,
    (Stage.CUTTING, Event.RESUME): Stage.OPEN,
    (Stage.CUTTING, Event.CLOSE): Stage.CLOSED,
    (Stage.HELD, Event.DRAIN): Stage.DRAINING,  # those that are kept go on to their ends
    (Stage.HELD, Event.CUT): Stage.CUTTING,
    (Stage.HELD, Event.KEEP): Stage.HELD,
    (Stage.HELD, Event.INTERRUPT): Stage.CUTTING,
    (Stage.HELD, Event.RESUME): Stage.OPEN,
    (Stage.HELD, Event.CLOSE): Stage.CLOSED,
    (Stage.CLOSED, Event.CLOSE): Stage.CLOSED,
}
"""Where an event leads. What is missing is an error: nothing but closing again follows closing."""


@attrs.frozen(kw_only=True)
class Flow:
    """Counts and the stage. Start with `Flow()`, or `Flow(slots=...)`."""

    stage: Stage = Stage.OPEN
    slots: int | None = None
    """Most requests that run at once; None: no bound."""
    running: int = 0
    """Requests that began and have not ended, whether they are held or not."""
    waiting: int = 0
    """Requests that arrived and have not begun."""
    working: int = 0
    """Pieces of work on the present weights that are being done: a decoding step, for example."""

    @property
    def is_going(self) -> bool:
        """Running requests may go on: a piece of work may begin."""
        return self.stage in (Stage.OPEN, Stage.DRAINING)

    @property
    def is_still(self) -> bool:
        """A pause is complete: nothing is done, and nothing begins before it ends."""
        return self.stage in (Stage.HELD, Stage.CLOSED) and self.working == 0


@attrs.frozen
class Turn:
    """What follows an event."""

    flow: Flow
    begins: int = 0
    """How many of those that wait begin now; they count as running already."""
    cuts: bool = False
    """All that run must end as they are."""


def arrive(flow: Flow) -> Flow:
    """A request comes and waits. Requests that arrive together are then let in by one `admit`, so
    that their priority decides who begins first. Raises IllegalTransition: closed."""
    if flow.stage is Stage.CLOSED:
        raise IllegalTransition("a request arrived at an engine that is closed")
    return attrs.evolve(flow, waiting=flow.waiting + 1)


def admit(flow: Flow) -> Turn:
    """Let waiting requests begin, as far as there are free slots. Every other event that makes room
    (`withdraw`, `end`, a resumption) does this by itself."""
    return _settled(flow)


def withdraw(flow: Flow) -> Turn:
    """A request that waits leaves. Raises IllegalTransition: none waits."""
    if flow.waiting == 0:
        raise IllegalTransition("a waiting request left, and none waits")
    return _settled(attrs.evolve(flow, waiting=flow.waiting - 1))


def end(flow: Flow) -> Turn:
    """A request that runs ends, whatever its reason. Raises IllegalTransition: none runs."""
    if flow.running == 0:
        raise IllegalTransition("a running request ended, and none runs")
    return _settled(attrs.evolve(flow, running=flow.running - 1))


def work(flow: Flow) -> Flow:
    """A piece of work begins: generation only while `is_going`, an update while it is still.

    Raises IllegalTransition: an engine that is closed, or where cut requests are on their way out.
    """
    if flow.stage in (Stage.CLOSED, Stage.CUTTING):
        raise IllegalTransition(f"a piece of work began in an engine that is {flow.stage.value}")
    return attrs.evolve(flow, working=flow.working + 1)


def rest(flow: Flow) -> Turn:
    """A piece of work ends. Raises IllegalTransition: none is being done."""
    if flow.working == 0:
        raise IllegalTransition("a piece of work ended, and none was being done")
    return _settled(attrs.evolve(flow, working=flow.working - 1))


def follow(flow: Flow, event: Event) -> Turn:
    """Do what is asked. Raises IllegalTransition: the engine is closed."""
    stage = TABLE.get((flow.stage, event))
    if stage is None:
        raise IllegalTransition(f"{event.value} of an engine that is {flow.stage.value}")
    cuts = event in (Event.CUT, Event.INTERRUPT, Event.CLOSE)
    return attrs.evolve(_settled(attrs.evolve(flow, stage=stage)), cuts=cuts)


def _settled(flow: Flow) -> Turn:
    """Nothing runs any more: held. Open: whoever has room begins."""
    if flow.stage in (Stage.DRAINING, Stage.CUTTING) and flow.running == 0:
        flow = attrs.evolve(flow, stage=Stage.HELD)
    if flow.stage is not Stage.OPEN or flow.waiting == 0:
        return Turn(flow)
    room = flow.waiting if flow.slots is None else flow.slots - flow.running
    begins = max(0, min(room, flow.waiting))
    if begins == 0:
        return Turn(flow)
    return Turn(
        attrs.evolve(flow, running=flow.running + begins, waiting=flow.waiting - begins), begins
    )
