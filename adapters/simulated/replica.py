"""One replica that shares its time between requests, with one timer however many they are.

Every running request gets tokens at the same speed, which falls with their number. So one number
says how far all of them are: what a request that runs since the beginning would have by now. A
request ends when that number has passed its own start by its length; the next end is the top of a
heap, and an event costs O(log n) (the attained-service clock of processor sharing).
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator

import attrs

from hexpo.adapters.simulated.costs import RolloutSpeed

_NEARLY = 1e-6
"""What rounding may take from a whole id."""


@attrs.define(eq=False)
class Job:
    """One request inside a replica. Lengths are in ids of the answer."""

    ids: int
    """What is still to be sampled."""
    is_cut: bool
    """The budget ends it, not the answer."""
    done: asyncio.Future[int]
    """How many were sampled when it ended: fewer than `ids` where it was cut."""
    session: str
    prompt_tokens: int
    """Read before the first id, unless the session's are cached."""
    given_tokens: int
    """Of this answer's own earlier part, read again."""
    begun: float = -1.0
    """The clock when it got its slot."""
    is_over: bool = False
    spans: tuple[tuple[int, int, int], ...] = ()
    """Start, end, version; set when it ends."""


@attrs.define
class Usage:
    """Where a replica's time went, in seconds."""

    running: float = 0.0
    """With at least one request, and not held by an update."""
    reading: float = 0.0
    """Of it: prompts and caches."""
    ids: float = 0.0
    """Sampled."""


class Replica:
    """A queue, slots, a clock of served ids and a timer."""

    def __init__(
        self, speed: RolloutSpeed, *, grain: int, changed: Callable[[Replica], None]
    ) -> None:
        """Args: grain: tokens that one id stands for. changed: called when its load changed."""
        self._speed, self._grain, self._changed = speed, grain, changed
        self._loop = asyncio.get_running_loop()
        self._queue: dict[Job, None] = {}
        self._running: dict[Job, None] = {}
        self._ends: list[tuple[float, int, Job]] = []
        self._count = 0
        self._served = 0.0
        self._last = self._loop.time()
        self._reading_until = self._last
        self._loads: list[tuple[float, int]] = [(-1.0, 0)]
        self._cached: set[str] = set()
        self._held = self._slots_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._will_arm = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.usage = Usage()

    @property
    def load(self) -> int:
        """Requests that run or wait."""
        return len(self._running) + len(self._queue)

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._queue)

    def add(self, job: Job) -> None:
        """Give it a slot, or a place in the queue."""
        self._queue[job] = None
        self._serve()

    def cut(self, job: Job) -> None:
        """End it with what it has."""
        if job.is_over:
            return
        self._advance()
        if job in self._running:
            self._end(job, int(self._served - job.begun + _NEARLY))
        else:
            del self._queue[job]
            self._finish(job, 0)
        self._serve()

    def cut_running(self) -> None:
        """End all that have a slot; those that wait for one go on waiting."""
        self._advance()
        for job in tuple(self._running):
            self._end(job, int(self._served - job.begun + _NEARLY))

    def hold(self) -> None:
        """Stop the clock."""
        self._advance()
        self._held = True
        self._arm_soon()

    def stop_serving(self) -> None:
        """Give no further slots; what has one goes on."""
        self._advance()
        self._slots_closed = True

    async def idle(self) -> None:
        """Wait until no request has a slot."""
        await self._idle.wait()

    def go(self) -> None:
        """Go on."""
        self._advance()
        self._held = self._slots_closed = False
        self._serve()

    def load_weights(self, version: int) -> None:
        """New weights: no cache is valid any more. What still has a slot is read again."""
        self._advance()
        self._loads.append((self._served, version))
        self._cached.clear()
        oldest = min((job.begun for job in self._running), default=self._served)
        known = bisect_right(self._loads, (oldest, 1 << 62)) - 1
        del self._loads[: max(0, known)]
        for job in self._running:
            self._read(job, int(self._served - job.begun))

    def fail(self, error: Exception) -> None:
        """Every request gets the error, and nothing stays."""
        for job in (*self._running, *self._queue):
            job.is_over = True
            if not job.done.done():
                job.done.set_exception(error)
        self._running, self._queue, self._ends = {}, {}, []
        self._idle.set()
        self._arm_soon()

    def _advance(self) -> None:
        now = self._loop.time()
        running = len(self._running)
        if running and not self._held:
            reading = max(0.0, min(now, self._reading_until) - self._last)
            decoding = now - self._last - reading
            passes = decoding / (self._speed.pass_seconds(running) * self._grain)
            self._served += passes
            self.usage.running += now - self._last
            self.usage.reading += reading
            self.usage.ids += passes * running
        elif self._held and self._reading_until > self._last:
            self._reading_until += now - self._last  # what was being read waits too
        self._last = now

    def _read(self, job: Job, own_ids: int) -> None:
        prompt = 0 if job.session and job.session in self._cached else job.prompt_tokens
        if job.session:
            self._cached.add(job.session)
        tokens = prompt + job.given_tokens + own_ids * self._grain
        start = max(self._last, self._reading_until)
        self._reading_until = start + tokens * self._speed.prefill_seconds

    def _serve(self) -> None:
        """Hand out free slots."""
        self._advance()
        while (
            self._queue
            and len(self._running) < self._speed.slots
            and not self._held
            and not self._slots_closed
        ):
            job = next(iter(self._queue))
            del self._queue[job]
            self._running[job] = None
            self._idle.clear()
            job.begun = self._served
            self._read(job, 0)
            self._count += 1
            heapq.heappush(self._ends, (self._served + job.ids, self._count, job))
        self._changed(self)
        self._arm_soon()

    def _arm_soon(self) -> None:
        """Set the timer once, after all that happens in this instant."""
        if not self._will_arm:
            self._will_arm = True
            self._loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._will_arm = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].is_over:
            heapq.heappop(self._ends)
        if self._held or not self._ends:
            return
        self._advance()
        passes = max(0.0, self._ends[0][0] - self._served)
        seconds = passes * self._speed.pass_seconds(len(self._running)) * self._grain
        start = max(self._last, self._reading_until)
        self._timer = self._loop.call_at(start + seconds, self._reach, self._ends[0][0])

    def _reach(self, mark: float) -> None:
        self._timer = None
        self._advance()
        self._served = max(self._served, mark)
        for job in self._due():
            self._end(job, job.ids)
        self._serve()

    def _due(self) -> Iterator[Job]:
        while self._ends and self._ends[0][0] <= self._served + 1e-9:
            job = heapq.heappop(self._ends)[2]
            if not job.is_over:
                yield job

    def _end(self, job: Job, ids: int) -> None:
        del self._running[job]
        job.spans = tuple(self._spans(job.begun, min(ids, job.ids)))
        self._finish(job, min(ids, job.ids))
        if not self._running:
            self._idle.set()

    def _spans(self, begun: float, ids: int) -> Iterator[tuple[int, int, int]]:
        """Start, end and version of what was sampled between two updates."""
        place = bisect_right(self._loads, (begun, 1 << 62)) - 1
        start = 0
        for here in range(max(0, place), len(self._loads)):
            last = here + 1 == len(self._loads)
            end = ids if last else int(self._loads[here + 1][0] - begun + _NEARLY)
            end = min(end, ids)
            if end > start:
                yield start, end, self._loads[here][1]
                start = end

    def _finish(self, job: Job, ids: int) -> None:
        job.is_over = True
        if not job.done.done():
            job.done.set_result(ids)
