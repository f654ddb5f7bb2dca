"""A process on this machine, as its cluster sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.cluster.local.channel import Channel, Frame, Kind
from hexpo.adapters.cluster.wire import guard
from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.cluster.wire.endings import cause_of, killed_for_memory
from hexpo.adapters.cluster.wire.failures import revived
from hexpo.adapters.cluster.wire.logs import Tail
from hexpo.adapters.cluster.wire.service import dead
from hexpo.adapters.cluster.wire.warden import Warden
from hexpo.application.ports.cluster import Death, ProcessSpec
from hexpo.domain.errors import EngineFailed

_log = logging.getLogger(__name__)
_LAST_WORDS = 1.0
"""Seconds: how long what a dead process has sent may take to be read."""


@attrs.frozen(kw_only=True)
class Bounds:
    """How long an ending may take, in seconds."""

    start: float
    close: float
    force: float


class LocalProcess:
    """Implements Process. Its cluster makes it; `ready` ends the start."""

    def __init__(
        self,
        spec: ProcessSpec,
        process: asyncio.subprocess.Process,
        channel: Channel,
        *,
        folder: Path,
        tail: Tail,
        warden: Warden,
        bounds: Bounds,
        ended: Callable[[str], None],
    ) -> None:
        self._spec, self._process, self._channel = spec, process, channel
        self._folder, self._tail, self._warden, self._bounds = folder, tail, warden, bounds
        self._ended = ended
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Frame] = loop.create_future()
        self._death: asyncio.Future[Death] = loop.create_future()
        self._stopping: asyncio.Task[None] | None = None
        self._memory_kills = killed_for_memory()
        warden.add(process.pid)
        self._receiving = asyncio.ensure_future(self._receive())
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def name(self) -> str:
        """As wanted."""
        return self._spec.name

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._process.pid

    async def ready(self, place: dict[str, str]) -> None:
        """Compose the service. Raises what the entry raised; EngineFailed: it ended, or is late."""
        parts = encode((self._spec.entry, self._spec.value, place))
        try:
            with contextlib.suppress(EOFError):  # it has ended: the future says why
                await self._channel.send(Frame(Kind.START, 0, parts))
            async with asyncio.timeout(self._bounds.start):
                frame = await asyncio.shield(self._ready)
        except TimeoutError:
            raise EngineFailed(
                f"process {self.name!r} was not ready after {self._bounds.start:g} s;"
                f" {self._tail.quote()}raise start_seconds if it only needs longer"
            ) from None
        if frame.kind is Kind.RAISED:
            raise revived(decode(frame.parts), name=self.name)

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the service. What is given may not change before this returns."""
        if self._death.done():
            raise dead(self.name, self._death.result().cause)
        number, waiting = next(self._numbers), asyncio.get_running_loop().create_future()
        parts = encode((method, arguments, options))
        self._waiting[number] = waiting
        try:
            with contextlib.suppress(EOFError):  # it has ended: the future says why
                await self._channel.send(Frame(Kind.CALL, number, parts))
            frame = await waiting
        except asyncio.CancelledError:
            if not self._death.done():
                self._soon(Frame(Kind.CANCEL, number))
            raise
        finally:
            self._waiting.pop(number, None)
        if frame.kind is Kind.RAISED:
            raise revived(decode(frame.parts), name=self.name)
        return decode(frame.parts)

    async def death(self) -> Death:
        """Wait until it ends."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """End it: by its service's `close`, by SIGTERM, by SIGKILL, each within its bound."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        for order, seconds in (
            (self._close, self._bounds.close),
            (self._terminate, self._bounds.force),
            (self._kill, self._bounds.force),
        ):
            if self._death.done():
                break
            order()
            await asyncio.wait([self._death], timeout=seconds)
        await asyncio.wait([self._watching])

    def _close(self) -> None:
        if self._ready.done():
            self._soon(Frame(Kind.CLOSE))
        else:
            self._kill()  # nothing is there to be closed

    def _terminate(self) -> None:
        _log.warning("%s did not close within %g s", self.name, self._bounds.close)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def _kill(self) -> None:
        """It alone; what it started ends behind it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _soon(self, frame: Frame) -> None:
        task = asyncio.ensure_future(self._channel.send(frame))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _receive(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                frame = await self._channel.receive()
                waiting = self._waiting.get(frame.number) if frame.number else self._ready
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)

    async def _watch(self) -> None:
        """Turn the end of the process into a death, and clear up behind it."""
        ending = asyncio.ensure_future(self._process.wait())
        await asyncio.wait([ending, self._receiving], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():  # it hung up: it ends now, or is made to
            await asyncio.wait([ending], timeout=self._bounds.force)
        await asyncio.to_thread(guard.end, {self.pid})  # it, or what it started itself
        code = await ending
        self._warden.remove(self.pid)
        await asyncio.wait([self._receiving], timeout=_LAST_WORDS)
        self._receiving.cancel()
        await asyncio.wait([self._receiving])
        self._channel.close()
        self._announce(code)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _announce(self, code: int) -> None:
        self._tail.pass_on()
        cause = cause_of(code, memory_kills=killed_for_memory() - self._memory_kills)
        expected = self._stopping is not None
        self._ended(self.name)
        self._death.set_result(
            Death(name=self.name, cause=cause, expected=expected, log=str(self._tail.path))
        )
        for waiting in (self._ready, *self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(dead(self.name, f"{self._tail.quote()}{cause}"))
                waiting.exception()  # looked at, should nobody wait
        if not expected:
            _log.error("process %s died; %s%s", self.name, self._tail.quote(), cause)
