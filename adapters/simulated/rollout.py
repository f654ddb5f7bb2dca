"""A rollout engine of scripted lengths and speeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import attrs
import torch

from hexpo.application.flow import Valve
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    Span,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed
from hexpo.domain.schedule.flow import Stage
from hexpo.domain.trajectory import StopReason


@attrs.frozen(kw_only=True)
class Script:
    """What one request does."""

    length: int = 4
    """Tokens of the answer."""
    seconds: float = 1.0
    """Virtual time until the answer is whole."""
    error: Exception | None = None
    """Raised instead of an answer, after `seconds`."""


@attrs.define(eq=False)
class _Run:
    """A request inside: it waits, or has a slot."""

    request: Request
    script: Script
    order: int
    begun: asyncio.Event = attrs.field(factory=asyncio.Event)
    versions: list[int] = attrs.field(factory=list)
    ending: StopReason | None = None

    def __lt__(self, other: _Run) -> bool:
        return (self.request.priority, self.order) < (other.request.priority, other.order)


class SimulatedRollout:
    """Answers as its script says; ids and log-probs are drawn from the request's seed."""

    def __init__(
        self,
        script: Callable[[Request], Script],
        *,
        load_seconds: float = 0.0,
        vocabulary: int = 32,
        slots: int | None = None,
    ) -> None:
        self._script, self._load_seconds, self._vocabulary = script, load_seconds, vocabulary
        self._version = self._arrivals = 0
        self._running: dict[_Run, None] = {}
        self._valve: Valve[_Run] = Valve(self._begin, self._cut, slots=slots)
        self.capabilities = RolloutCapabilities(
            pause_modes=frozenset(PauseMode), filtered_logprobs=True, overlap=True
        )

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: Request) -> Generation:
        """Draws the answer piece by piece, so that an update inside it shows in its spans."""
        self._require_open()
        run = _Run(request, self._script(request), self._arrivals)
        self._arrivals += 1
        self._valve.enter(run)
        timer = None
        if request.deadline_seconds is not None:
            timer = asyncio.get_running_loop().call_later(
                request.deadline_seconds, _end, run, StopReason.TIMEOUT
            )
        try:
            await run.begun.wait()
            return _answer(run, await self._play(run), self._vocabulary)
        finally:
            if timer is not None:
                timer.cancel()
            self._running.pop(run, None)
            self._valve.leave(run)

    async def _play(self, run: _Run) -> StopReason:
        script, request = run.script, run.request
        left = script.length - request.given
        budget = request.sampling.max_new_tokens
        for _ in range(min(left, budget)):
            await self._valve.going()
            if run.ending is not None:
                return run.ending
            with self._valve.working():
                await asyncio.sleep(script.seconds / script.length)
                run.versions.append(self._version)
        if script.error is not None:
            raise script.error
        return StopReason.STOP if left <= budget else StopReason.LENGTH

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The whole answer as one chunk."""
        generation = await self.generate(request)
        yield Chunk(tokens=tuple(generation.tokens.tolist()), stop=generation.stop)

    async def pause(self, mode: PauseMode) -> None:
        """A piece of one token that was begun is finished first, under the old version."""
        self._require_open()
        self._valve.hold(mode)
        await self._valve.still()

    async def resume(self) -> None:
        """Go on."""
        self._require_open()
        self._valve.resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """End what runs or waits, after the piece that was begun."""
        for run in [*self._running, *self._valve.waiting]:
            if requests is None or run.request.id in requests:
                _end(run, StopReason.ABORTED)

    async def load_weights(self, update: Update) -> Digest | None:
        """Takes the configured time."""
        await asyncio.sleep(self._load_seconds)
        self._version = update.version
        return None

    async def sleep(self) -> None:
        """Holds no memory."""

    async def wake(self) -> None:
        """Never asleep."""

    async def close(self) -> None:
        """Whoever runs or waits ends aborted."""
        await self.interrupt()
        await self._valve.stop()

    def _require_open(self) -> None:
        if self._valve.flow.stage is Stage.CLOSED:
            raise EngineFailed("the simulated rollout engine was closed")

    def _begin(self, run: _Run) -> None:
        self._running[run] = None
        run.begun.set()

    def _cut(self) -> None:
        for run in self._running:
            _end(run, StopReason.ABORTED)


def _end(run: _Run, why: StopReason) -> None:
    """It ends at its next piece."""
    run.ending = run.ending or why
    run.begun.set()


def _answer(run: _Run, stop: StopReason, vocabulary: int) -> Generation:
    """What was played; a token and its log-prob depend on the seed and on its place alone."""
    generator = torch.Generator().manual_seed(run.request.seed % 2**63)
    tokens = torch.randint(vocabulary, (run.script.length,), generator=generator)
    logprobs = -torch.rand(run.script.length, generator=generator)
    spans: list[Span] = []
    for place, version in enumerate(run.versions):
        if spans and spans[-1].version == version:
            spans[-1] = Span(spans[-1].start, place + 1, version)
        else:
            spans.append(Span(place, place + 1, version))
    here = slice(run.request.given, run.request.given + len(run.versions))
    return Generation(tokens=tokens[here], logprobs=logprobs[here], spans=tuple(spans), stop=stop)
