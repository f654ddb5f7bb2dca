"""Frames over a socket: a kind, the number of a call, and parts that are not copied on the way."""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Sequence

import attrs

from hexpo.adapters.cluster.wire.codec import Part

_HEAD = struct.Struct("!BQI")
_TOGETHER = 1 << 16
"""Bytes; smaller parts are joined into one write."""


class Kind(enum.IntEnum):
    """What a frame says."""

    START = 1
    """To the child: what to start."""
    READY = 2
    """From the child: calls may come."""
    CALL = 3
    """To the child: method, arguments and options."""
    CANCEL = 4
    """To the child: nobody waits for this call any more."""
    RETURNED = 5
    """From the child: a call's result."""
    RAISED = 6
    """From the child: a call's failure, or the entry's."""
    CLOSE = 7
    """To the child: close the service and end."""


@attrs.frozen(eq=False)
class Frame:
    """One message."""

    kind: Kind
    number: int = 0
    """Of the call that it belongs to; 0: of none."""
    parts: Sequence[Part] = ()


class Channel:
    """One end of a connection. Frames leave whole and in order, whoever sends and is cancelled."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(0)  # never blocks
        self._connection = connection
        self._lock = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, frame: Frame) -> None:
        """Write a frame; returns when the system has it all.

        Raises: EOFError: the other end is gone.
        Cancellation: the frame is written nevertheless; half a frame would garble the next.
        """
        task = asyncio.ensure_future(self._write(frame))
        self._sending.add(task)
        task.add_done_callback(self._sent)
        await asyncio.shield(task)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, should its sender have been cancelled

    async def _write(self, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        sizes = [memoryview(part).nbytes for part in frame.parts]
        head = _HEAD.pack(frame.kind, frame.number, len(sizes)) + struct.pack(
            f"!{len(sizes)}Q", *sizes
        )
        async with self._lock:
            try:
                together = bytearray(head)
                for part, size in zip(frame.parts, sizes, strict=True):
                    if size + len(together) <= _TOGETHER:
                        together += part
                        continue
                    await loop.sock_sendall(self._connection, together)
                    await loop.sock_sendall(self._connection, part)
                    together = bytearray()
                await loop.sock_sendall(self._connection, together)
            except OSError as error:
                raise EOFError("the other end is gone") from error

    async def receive(self) -> Frame:
        """The next frame; its parts may be written to. Raises EOFError: the other end is gone."""
        kind, number, count = _HEAD.unpack(await self._exactly(_HEAD.size))
        sizes = struct.unpack(f"!{count}Q", await self._exactly(8 * count))
        return Frame(Kind(kind), number, [await self._exactly(size) for size in sizes])

    async def _exactly(self, size: int) -> bytearray:
        loop, memory, done = asyncio.get_running_loop(), bytearray(size), 0
        view = memoryview(memory)
        while done < size:
            try:
                got = await loop.sock_recv_into(self._connection, view[done:])
            except OSError as error:
                raise EOFError("the other end is gone") from error
            if got == 0:
                raise EOFError("the other end is gone")
            done += got
        return memory

    def close(self) -> None:
        """Close this end. Only when nobody receives any more."""
        self._connection.close()
