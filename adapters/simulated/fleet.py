"""Rollout replicas whose speed depends on what they do, behind the one rollout port."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

import attrs
import torch

from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.replica import Job, Replica, Usage
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    Span,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.application.routing import SLACK, LeastLoaded
from hexpo.domain.errors import EngineFailed
from hexpo.domain.trajectory import StopReason

_DRAWN = 1 << 16
"""Random ids that exist; an answer reads them from a place that its seed gives."""


@attrs.frozen(kw_only=True)
class FleetSettings:
    """What a fleet is."""

    replicas: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    speed: RolloutSpeed = attrs.field(factory=RolloutSpeed)
    """Of each replica."""
    load_seconds: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    """Virtual time of a weight update, on all replicas side by side."""
    grain: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Tokens that one id stands for: answers of 28,000 tokens with a grain of 512 are 55 ids, so
    that a plan for a large fleet fits into memory. Budgets of requests count ids."""
    prompt_tokens: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Tokens of each prompt; what the request's own ids are is not looked at."""
    slack: int = attrs.field(default=SLACK, validator=attrs.validators.ge(0))
    """Requests that a session's replica may have more than the idlest before another is taken."""
    vocabulary: int = 32
    """Ids are drawn from 0 up to here."""


@functools.cache
def _drawn(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probs, the same for every fleet; answers are views of them."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (_DRAWN,), generator=generator)
    return ids, -torch.rand(_DRAWN, generator=generator)


class SimulatedFleet:
    """Implements RolloutEngine, routed as the loop's own replicas are: requests of one session
    share one while it has little more to do than the idlest; else that one is taken.

    What an answer is depends on its request alone, how long it takes on all that runs.
    """

    def __init__(self, settings: FleetSettings, length: Callable[[Request], int]) -> None:
        """Args: length: tokens of the whole answer to a request."""
        self.settings, self._length = settings, length
        self._replicas = [
            Replica(settings.speed, grain=settings.grain, changed=self._place_again)
            for _ in range(settings.replicas)
        ]
        self._loads: LeastLoaded[Replica] = LeastLoaded()
        for replica in self._replicas:
            self._loads.enter(replica)
        self._sessions: dict[str, tuple[Replica, int]] = {}
        self._jobs: dict[str, tuple[Job, Replica]] = {}
        self._admitting = asyncio.Event()
        self._admitting.set()
        self._overtaken = asyncio.Event()
        self._version, self._closed = 0, False
        self._ids, self._logprobs = _drawn(settings.vocabulary)
        self.capabilities = RolloutCapabilities(
            pause_modes=frozenset(PauseMode),
            filtered_logprobs=True,
            overlap=True,
            replicas=settings.replicas,
        )

    @property
    def version(self) -> int:
        return self._version

    @property
    def usage(self) -> Usage:
        """Seconds and ids of all replicas, added up."""
        total = Usage()
        for replica in self._replicas:
            total.running += replica.usage.running
            total.reading += replica.usage.reading
            total.ids += replica.usage.ids
        return total

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return sum(replica.waiting for replica in self._replicas)

    async def generate(self, request: Request) -> Generation:
        """Waits for a slot and for its share of the replica's time."""
        while not self._admitting.is_set():
            await self._admitting.wait()
        self._require_open()
        replica = self._route(request.session)
        job = self._job(request)
        self._jobs[request.id] = (job, replica)
        try:
            replica.add(job)
            is_late = await self._pass_deadline(request, job, replica)
            sampled = await job.done
        finally:
            replica.cut(job)
            self._jobs.pop(request.id, None)
            self._leave(request.session)
        if sampled == job.ids:
            stop = StopReason.LENGTH if job.is_cut else StopReason.STOP
        else:
            stop = StopReason.TIMEOUT if is_late else StopReason.ABORTED
        return self._answer(request, job, sampled, stop)

    @staticmethod
    async def _pass_deadline(request: Request, job: Job, replica: Replica) -> bool:
        """Cut the request at its deadline, if it has one and passes it."""
        if request.deadline_seconds is None:
            return False
        await asyncio.wait({job.done}, timeout=request.deadline_seconds)
        is_late = not job.done.done()
        replica.cut(job)
        return is_late

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The whole answer as one chunk."""
        generation = await self.generate(request)
        yield Chunk(tokens=tuple(generation.tokens.tolist()), stop=generation.stop)

    async def pause(self, mode: PauseMode) -> None:
        """Hold new requests; keep, cut or await those that have a slot. Another pause, or a
        resumption, ends the wait of a drain."""
        self._admitting.clear()
        overtaken = self._overtake()
        if mode is PauseMode.DRAIN:
            for replica in self._replicas:
                replica.stop_serving()
            for replica in self._replicas:
                await _first(replica.idle(), overtaken.wait())
            if overtaken.is_set():
                return
        if mode is PauseMode.ABORT:
            for replica in self._replicas:
                replica.cut_running()
        for replica in self._replicas:
            replica.hold()

    async def resume(self) -> None:
        """Go on."""
        self._overtake()
        for replica in self._replicas:
            replica.go()
        self._admitting.set()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """Cut what runs or waits."""
        for name in tuple(self._jobs) if requests is None else requests:
            if name in self._jobs:
                job, replica = self._jobs[name]
                replica.cut(job)

    async def load_weights(self, update: Update) -> Digest | None:
        """Takes the configured time; what is inside is read again afterwards."""
        self._require_open()
        await asyncio.sleep(self.settings.load_seconds)
        for replica in self._replicas:
            replica.load_weights(update.version)
        self._version = update.version
        return None

    async def sleep(self) -> None:
        """Holds no memory."""

    async def wake(self) -> None:
        """Never asleep."""

    async def close(self) -> None:
        """Whoever waits gets EngineFailed."""
        self._closed = True
        self._admitting.set()
        for replica in self._replicas:
            replica.fail(EngineFailed("the simulated fleet was closed"))

    def _overtake(self) -> asyncio.Event:
        """End the wait of an earlier drain. Returns: what ends the next one's."""
        self._overtaken.set()
        self._overtaken = asyncio.Event()
        return self._overtaken

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailed("the simulated fleet was closed")

    def _job(self, request: Request) -> Job:
        grain = self.settings.grain
        left = max(1, round(self._length(request) / grain) - request.given)
        budget = request.sampling.max_new_tokens
        return Job(
            ids=min(left, budget),
            is_cut=left > budget,
            done=asyncio.get_running_loop().create_future(),
            session=request.session,
            prompt_tokens=self.settings.prompt_tokens,
            given_tokens=request.given * grain,
        )

    def _answer(self, request: Request, job: Job, sampled: int, stop: StopReason) -> Generation:
        start = request.seed % _DRAWN + request.given
        if start + sampled <= _DRAWN:
            ids, logprobs = (
                column[start : start + sampled] for column in (self._ids, self._logprobs)
            )
        else:
            places = torch.arange(start, start + sampled) % _DRAWN
            ids, logprobs = self._ids[places], self._logprobs[places]
        spans = tuple(Span(*span) for span in job.spans)
        return Generation(tokens=ids, logprobs=logprobs, spans=spans, stop=stop)

    def _route(self, session: str) -> Replica:
        """The session's replica while it has room, or the idlest."""
        if not session:
            return self._loads.least()
        replica, users = self._sessions.get(session, (None, 0))
        if replica is None or not self._loads.has_room(replica, slack=self.settings.slack):
            replica = self._loads.least()
        self._sessions[session] = (replica, users + 1)
        return replica

    def _leave(self, session: str) -> None:
        if not session:
            return
        replica, users = self._sessions[session]
        if users == 1:
            del self._sessions[session]
        else:
            self._sessions[session] = (replica, users - 1)

    def _place_again(self, replica: Replica) -> None:
        """Its load changed."""
        self._loads.place(replica, replica.load)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them has ended; the others are ended too."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
