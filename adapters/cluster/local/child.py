"""What runs in a started process: `python -m hexpo.adapters.cluster.local.child SOCKET PARENT`."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from typing import Any

import attrs

from hexpo.adapters.cluster.local.channel import Channel, Frame, Kind
from hexpo.adapters.cluster.wire import ports
from hexpo.adapters.cluster.wire.codec import decode, encode
from hexpo.adapters.cluster.wire.failures import failure
from hexpo.adapters.cluster.wire.service import answer, close, compose
from hexpo.application.ports.cluster import Context

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def main() -> None:
    """Serve until the other end closes or is gone."""
    number, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    faulthandler.enable()
    asyncio.run(_Child(socket.socket(fileno=number)).run())


def _die_with(parent: int) -> None:
    """Ask the system to end this process with its parent; elsewhere the socket's end does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before the request was made
        sys.exit(f"the process {parent} that started this one is gone")


class _Child:
    """One service, and its calls side by side."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Compose the service, serve, close it."""
        self._channel = Channel(self._connection)
        ended = asyncio.current_task()
        if ended is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.cancel)
        start = await self._channel.receive()
        receiving = asyncio.ensure_future(self._channel.receive())
        composing = asyncio.ensure_future(self._compose(start))
        await asyncio.wait({receiving, composing}, return_when=asyncio.FIRST_COMPLETED)
        if not composing.done():  # told to end, or alone, before it was ready
            composing.cancel()
            return
        service = composing.result()
        try:
            await self._channel.send(Frame(Kind.READY))
            await self._serve(service, receiving)
        finally:
            await close(service)

    async def _compose(self, start: Frame) -> Any:
        try:
            entry, value, place = decode(start.parts)
            return await compose(entry, value, Context(**place, hold=ports.hold))
        except Exception as error:
            await self._channel.send(Frame(Kind.RAISED, 0, encode(failure(error))))
            raise

    async def _serve(self, service: Any, receiving: asyncio.Future[Frame]) -> None:
        try:
            while (frame := await receiving).kind is not Kind.CLOSE:
                if frame.kind is Kind.CALL:
                    self._begin(service, frame)
                elif frame.number in self._calls:
                    self._calls[frame.number].cancel()
                receiving = asyncio.ensure_future(self._channel.receive())
        except EOFError:
            sys.stderr.write("the process that started this one is gone\n")
        for call in self._calls.values():
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls.values())

    def _begin(self, service: Any, frame: Frame) -> None:
        call = asyncio.ensure_future(self._answer(service, frame))
        self._calls[frame.number] = call
        call.add_done_callback(lambda _: self._calls.pop(frame.number, None))

    async def _answer(self, service: Any, frame: Frame) -> None:
        returned, parts = await answer(service, frame.parts)
        kind = Kind.RETURNED if returned else Kind.RAISED
        try:
            await self._channel.send(attrs.evolve(frame, kind=kind, parts=parts))
        except EOFError:
            return  # nobody waits any more; the loop above notices too


if __name__ == "__main__":
    main()
