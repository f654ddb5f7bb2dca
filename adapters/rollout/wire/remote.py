"""In the driver's process: an engine that lives in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from hexpo.application.ports.cluster import Process
from hexpo.application.ports.rollout import (
    Chunk,
    Generation,
    PauseMode,
    Request,
    RolloutCapabilities,
)
from hexpo.application.ports.transfer import Digest, Update
from hexpo.domain.errors import EngineFailed


class RemoteRollout:
    """Implements `RolloutEngine` by calls of a `RolloutService`. A death of the process reaches
    every waiting call as EngineFailed, with its cause."""

    def __init__(
        self,
        process: Process,
        *,
        capabilities: RolloutCapabilities,
        version: int,
        readers: Sequence[str] = (),
    ) -> None:
        """Args: readers: names of its receivers; empty: the process's alone."""
        self._process, self._capabilities, self._version = process, capabilities, version
        self.readers = tuple(readers) or (process.name,)
        self._closed = False

    @property
    def name(self) -> str:
        """The process's."""
        return self._process.name

    @property
    def capabilities(self) -> RolloutCapabilities:
        return self._capabilities

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: Request) -> Generation:
        self._require_open()
        answer: Generation = await self._process.call("generate", request)
        return answer

    async def stream(self, request: Request) -> AsyncIterator[Chunk]:
        self._require_open()
        number = await self._process.call("open_stream", request)
        try:
            while chunks := await self._process.call("read_stream", number):
                for chunk in chunks:
                    yield chunk
        finally:
            if not self._closed:
                await self._process.call("close_stream", number)

    async def pause(self, mode: PauseMode) -> None:
        self._require_open()
        await self._process.call("pause", mode)

    async def resume(self) -> None:
        self._require_open()
        await self._process.call("resume")

    async def interrupt(self, requests: Collection[str] | None = None) -> None:
        self._require_open()
        await self._process.call("interrupt", None if requests is None else list(requests))

    async def load_weights(self, update: Update) -> Digest | None:
        self._require_open()
        digest, self._version = await self._process.call("load_weights", update)
        return digest  # type: ignore[no-any-return]

    async def score(self, *arguments: Any, **options: Any) -> Any:
        """What the engine's own `score` gives. Raises Unsupported: it has none."""
        self._require_open()
        return await self._process.call("score", *arguments, **options)

    async def sleep(self) -> None:
        self._require_open()
        await self._process.call("sleep")

    async def wake(self) -> None:
        self._require_open()
        await self._process.call("wake")

    async def close(self) -> None:
        """Ends the process: running requests return aborted first."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._process.call("close")
            await asyncio.sleep(0)
        except EngineFailed:
            return  # it is dead already
        finally:
            await self._process.stop()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineFailed(f"rollout {self._process.name}: the engine is closed")


async def connect(process: Process) -> RemoteRollout:
    """The engine that a started process serves."""
    capabilities, version, readers = await process.call("describe")
    return RemoteRollout(process, capabilities=capabilities, version=version, readers=readers)
