"""In the engine's process: what calls from the driver reach."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
    RolloutEngine,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import Unsupported


class RolloutService:
    """Serves any rollout engine: its methods are what a `Process` calls.

    A cancelled call is cancelled here, which frees the request's slot.
    """

    def __init__(self, engine: RolloutEngine, *, readers: Sequence[str] = ()) -> None:
        """Args: readers: names by which updates list this engine's receivers."""
        self._engine, self._readers = engine, tuple(readers)
        self._streams: dict[int, _Stream] = {}
        self._numbers = itertools.count()

    async def describe(self) -> tuple[RolloutCapabilities, int, tuple[str, ...]]:
        """What the engine can do, its version, and the names of its receivers."""
        return self._engine.capabilities, self._engine.version, self._readers

    async def generate(self, request: Request) -> Generation:
        """A whole answer."""
        return await self._engine.generate(request)

    async def open_stream(self, request: Request) -> int:
        """The number of a stream that begins now."""
        number = next(self._numbers)
        self._streams[number] = _Stream(self._engine.stream(request))
        return number

    async def read_stream(self, number: int) -> list[Chunk]:
        """All chunks since the last call, at least one; none: it has ended. Raises what the
        stream raised."""
        return await self._streams[number].read()

    async def close_stream(self, number: int) -> None:
        """Ends it, if it has not. Safe to call twice."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            await stream.close()

    async def pause(self, mode: PauseMode) -> None:
        """See the port."""
        await self._engine.pause(mode)

    async def resume(self) -> None:
        """See the port."""
        await self._engine.resume()

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        """See the port."""
        await self._engine.interrupt(requests)

    async def load_weights(self, update: Update) -> tuple[Digest | None, int]:
        """What was read, and the version after it."""
        digest = await self._engine.load_weights(update)
        return digest, self._engine.version

    async def score(self, *arguments: Any, **options: Any) -> Any:
        """Log-probs of given ids. Raises Unsupported: the engine has no such method."""
        score = getattr(self._engine, "score", None)
        if score is None:
            raise Unsupported("this rollout engine does not score given ids")
        return await score(*arguments, **options)

    async def sleep(self) -> None:
        """See the port."""
        await self._engine.sleep()

    async def wake(self) -> None:
        """See the port."""
        await self._engine.wake()

    async def close(self) -> None:
        """Running requests end aborted."""
        await self._engine.close()
        for number in list(self._streams):
            await self.close_stream(number)


class _Stream:
    """Reads ahead, so that a call brings all that has grown since the last one."""

    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self._queue: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(chunks))

    async def _run(self, chunks: AsyncIterator[Chunk]) -> None:
        try:
            async for chunk in chunks:
                self._queue.put_nowait(chunk)
        finally:
            self._queue.put_nowait(None)

    async def read(self) -> list[Chunk]:
        found = [await self._queue.get()]
        while not self._queue.empty():
            found.append(self._queue.get_nowait())
        if None not in found:
            return [chunk for chunk in found if chunk is not None]
        self._queue.put_nowait(None)
        if len(found) == 1:
            await self._task  # raises what the engine raised
        return [chunk for chunk in found if chunk is not None]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
