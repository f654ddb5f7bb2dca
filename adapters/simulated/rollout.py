"""A rollout engine of scripted lengths and speeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import attrs
import torch

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


class SimulatedRollout:
    """Answers as its script says; ids and log-probs are drawn from the request's seed."""

    def __init__(
        self,
        script: Callable[[Request], Script],
        *,
        load_seconds: float = 0.0,
        vocabulary: int = 32,
    ) -> None:
        self._script, self._load_seconds, self._vocabulary = script, load_seconds, vocabulary
        self._version = 0
        self._admitting, self._running = asyncio.Event(), asyncio.Event()
        self._admitting.set()
        self._running.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._active: dict[str, asyncio.Event] = {}
        self._closed = False
        self.capabilities = RolloutCapabilities(
            pause_modes=frozenset(PauseMode), filtered_logprobs=True, overlap=True
        )

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: Request) -> Generation:
        """Draws the answer piece by piece, so that an update inside it shows in its spans."""
        await self._admitting.wait()
        script, abort = self._script(request), asyncio.Event()
        self._active[request.id] = abort
        self._idle.clear()
        try:
            return await self._play(request, script, abort)
        finally:
            self._active.pop(request.id, None)
            if not self._active:
                self._idle.set()

    async def _play(self, request: Request, script: Script, abort: asyncio.Event) -> Generation:
        generator = torch.Generator().manual_seed(request.seed % 2**63)
        tokens = torch.randint(self._vocabulary, (script.length,), generator=generator)
        logprobs = -torch.rand(script.length, generator=generator)
        versions: list[int] = []
        for _ in range(script.length):
            await self._running.wait()
            if self._closed:
                raise EngineFailed("the simulated rollout engine was closed")
            if abort.is_set():
                return self._cut(tokens, logprobs, versions, StopReason.ABORTED)
            await asyncio.sleep(script.seconds / script.length)
            versions.append(self._version)
        if script.error is not None:
            raise script.error
        return self._cut(tokens, logprobs, versions, StopReason.STOP)

    def _cut(
        self, tokens: torch.Tensor, logprobs: torch.Tensor, versions: list[int], stop: StopReason
    ) -> Generation:
        spans: list[Span] = []
        for place, version in enumerate(versions):
            if spans and spans[-1].version == version:
                spans[-1] = Span(spans[-1].start, place + 1, version)
            else:
                spans.append(Span(place, place + 1, version))
        end = len(versions)
        return Generation(
            tokens=tokens[:end], logprobs=logprobs[:end], spans=tuple(spans), stop=stop
        )

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        """The whole answer as one chunk."""
        generation = await self.generate(request)
        yield Chunk(tokens=tuple(generation.tokens.tolist()), stop=generation.stop)

    async def pause(self, mode: PauseMode) -> None:
        """Hold new requests; keep, abort or await what runs. A piece of one token that was begun
        is finished under the old version."""
        self._admitting.clear()
        if mode is PauseMode.DRAIN:
            await self._idle.wait()
        if mode is PauseMode.KEEP:
            self._running.clear()
        if mode is PauseMode.ABORT:
            for abort in self._active.values():
                abort.set()
            await self._idle.wait()

    async def resume(self) -> None:
        """Go on."""
        self._admitting.set()
        self._running.set()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """End what runs after the piece that was begun."""
        for name, abort in self._active.items():
            if requests is None or name in requests:
                abort.set()

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
        """Wake whoever waits."""
        self._closed = True
        self._admitting.set()
        self._running.set()
