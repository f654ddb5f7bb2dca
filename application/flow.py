"""The asynchronous shell of the pause machine, for engines; and pauses measured, for the loop.

Between two awaits a decision and its change are atomic, since one event loop runs them: there is
no lock to hold, and none is held while waiting for work.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

import attrs

from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.domain.metrics import Metrics, largest, total
from hexpo.domain.schedule.flow import (
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


class _Ranked(Protocol):
    """A waiting request and its rank: the lowest begins first. Two are equal only if identical."""

    def __lt__(self, other: Any, /) -> bool: ...

    def __hash__(self) -> int: ...


Entry = TypeVar("Entry", bound=_Ranked)

_EVENTS: Mapping[PauseMode, Event] = {
    PauseMode.DRAIN: Event.DRAIN,
    PauseMode.ABORT: Event.CUT,
    PauseMode.KEEP: Event.KEEP,
}


class Valve(Generic[Entry]):
    """Lets requests in, holds them back, and says when all is still.

    The requests that wait are here, in order; those that run belong to the engine, which tells
    when one leaves. The engine's two callbacks run at once, inside the call that caused them.
    """

    def __init__(
        self,
        begin: Callable[[Entry], None],
        cut: Callable[[], None],
        *,
        slots: int | None = None,
    ) -> None:
        """Args: begin: the entry runs from now on. cut: end all that run as they are, now or when
        the piece of work that they are in is done. slots: most that run at once."""
        self._begin, self._cut = begin, cut
        self._flow = Flow(slots=slots)
        self._waiting: list[Entry] = []
        self._queued: set[Entry] = set()
        self._will_admit = False
        self._going, self._still, self._calm = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._changed()

    @property
    def flow(self) -> Flow:
        """The state now."""
        return self._flow

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """Who waits, in no order."""
        return tuple(self._waiting)

    def enter(self, entry: Entry) -> None:
        """The entry waits for its turn, which may come as soon as this instant is over. Raises
        IllegalTransition: closed."""
        self._flow = arrive(self._flow)
        heapq.heappush(self._waiting, entry)
        self._queued.add(entry)
        if not self._will_admit:
            self._will_admit = True
            asyncio.get_running_loop().call_soon(self._admit)

    def leave(self, entry: Entry) -> None:
        """The entry ended, or waits no longer. Call once for each that entered."""
        if entry in self._queued:
            self._queued.remove(entry)
            self._waiting.remove(entry)
            heapq.heapify(self._waiting)
            self._take(withdraw(self._flow))
        else:
            self._take(end(self._flow))

    @contextmanager
    def working(self) -> Iterator[None]:
        """A piece of work, which a pause waits for. Raises IllegalTransition: closed."""
        self._flow = work(self._flow)
        self._changed()
        try:
            yield
        finally:
            self._take(rest(self._flow))

    async def going(self) -> None:
        """Wait until running requests may go on, or are cut, or the engine is closed: look which.
        Returns at once where it is so already."""
        await self._going.wait()

    def hold(self, mode: PauseMode) -> None:
        """Begin a pause. Raises IllegalTransition: closed."""
        self._take(follow(self._flow, _EVENTS[mode]))

    async def still(self) -> None:
        """Wait until the pause is complete: at the latest when the piece of work that is being
        done has ended. Only a drain waits for those that run; another pause, an interruption, a
        resumption or a close ends that wait."""
        await self._still.wait()

    def resume(self) -> None:
        """Let everybody go on. Raises IllegalTransition: closed."""
        self._take(follow(self._flow, Event.RESUME))

    def interrupt(self) -> None:
        """Cut all that run; a drain becomes a cut. Raises IllegalTransition: closed."""
        self._take(follow(self._flow, Event.INTERRUPT))

    def close(self) -> None:
        """Cut all that run and let nobody in. Whoever waits is left to the engine, in `waiting`;
        whoever waits for a pause is released."""
        self._take(follow(self._flow, Event.CLOSE))

    async def stop(self) -> None:
        """Close, and wait until no piece of work is being done."""
        self.close()
        await self._calm.wait()

    def _admit(self) -> None:
        self._will_admit = False
        self._take(admit(self._flow))

    def _take(self, turn: Turn) -> None:
        """Enter the new state first, then tell the engine: its callbacks may come back here."""
        self._flow = turn.flow
        begun = [heapq.heappop(self._waiting) for _ in range(turn.begins)]
        self._queued.difference_update(begun)
        self._changed()
        for entry in begun:
            self._begin(entry)
        if turn.cuts:
            self._cut()

    def _changed(self) -> None:
        flow = self._flow
        _set(self._going, on=flow.stage is not Stage.HELD)
        # Open means that a pause was overtaken: whoever waits for one must not wait for ever.
        _set(self._still, on=flow.is_still or flow.stage in (Stage.OPEN, Stage.CLOSED))
        _set(self._calm, on=flow.working == 0)


def _set(event: asyncio.Event, *, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()


@attrs.define(eq=False)
class Pauses:
    """Counts the pauses of a rollout and their lengths, by the event loop's clock (R2)."""

    _begun: int = 0
    _ended: int = 0
    _waited: float = 0.0
    _held: float = 0.0
    _longest: float = 0.0

    @asynccontextmanager
    async def during(self, rollout: RolloutEngine, mode: PauseMode) -> AsyncIterator[None]:
        """Pause, run the block, resume. Where the block raises there is no resumption: the
        engine's weights may be half written, and whoever catches the error decides."""
        clock = asyncio.get_running_loop().time
        began = still = clock()
        self._begun += 1
        try:
            await rollout.pause(mode)
            still = clock()
            yield
            await rollout.resume()
        finally:
            self._ended += 1
            self._waited += still - began
            self._held += clock() - began
            self._longest = max(self._longest, clock() - began)

    def metrics(self) -> Metrics:
        """Since the last call: `rollout/pauses` and `rollout/resumptions`, which are equal
        between pauses, `rollout/paused_seconds` in all and `..._longest`, and how much of it
        passed until the rollout was still."""
        found = {
            "rollout/pauses": total(self._begun),
            "rollout/resumptions": total(self._ended),
            "rollout/pausing_seconds": total(self._waited),
            "rollout/paused_seconds": total(self._held),
            "rollout/paused_seconds_longest": largest(self._longest),
        }
        self._begun = self._ended = 0
        self._waited = self._held = self._longest = 0.0
        return found
