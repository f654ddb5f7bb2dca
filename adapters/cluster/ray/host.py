"""What runs in an actor: one service, its calls side by side. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.cluster.wire import guard, ports
from hexpo.adapters.cluster.wire.codec import Part, decode, encode
from hexpo.adapters.cluster.wire.endings import killed_for_memory
from hexpo.adapters.cluster.wire.failures import failure
from hexpo.adapters.cluster.wire.service import answer, close, compose
from hexpo.application.ports.cluster import Context


@attrs.frozen(kw_only=True)
class Place:
    """Where an actor runs."""

    pid: int
    node: str
    folder: str
    near: bool
    """On its driver's node."""
    memory_kills: int
    """How often this node had run out of memory when the actor began."""


class Host:
    """The body of the actor."""

    def __init__(self, name: str, *, node: str, host: str, log: str, folder: str) -> None:
        """Args: node, host: of the driver, name and address. log, folder: on the driver's node."""
        self._name, self._driver, self._towards = name, node, host
        self._log, self._parent = log, folder
        self._calls: dict[int, asyncio.Task[tuple[bool, list[Part]]]] = {}
        self._service: Any = None
        self._folder = ""
        self._guard: subprocess.Popen[str] | None = None

    async def settle(self) -> Place:
        """Make the folder, and write to the run's own log where that is on this node."""
        node, near = socket.gethostname(), socket.gethostname() == self._driver
        self._folder = tempfile.mkdtemp(prefix="hexpo-", dir=self._parent if near else None)
        if near:
            with Path(self._log).open("ab") as log:  # noqa: ASYNC230  a local file, once
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                    os.dup2(log.fileno(), stream.fileno())
        faulthandler.enable(2)
        await asyncio.to_thread(self._call_guard)
        return Place(
            pid=os.getpid(),
            node=node,
            folder=self._folder,
            near=near,
            memory_kills=killed_for_memory(),
        )

    def _call_guard(self) -> None:
        """Whoever ends this process, and however, a guard ends what it started itself."""
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self._folder, "apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        if self._guard.stdin is not None:
            self._guard.stdin.write(f"add {os.getpid()}\n")
            self._guard.stdin.flush()
        self._guard.wait()  # it has gone apart

    async def compose(self, parts: Sequence[Part]) -> tuple[bool, list[Part]]:
        """Make the service. Nothing is raised: what failed is said as a value."""
        try:
            entry, value = decode(parts)
            context = Context(
                name=self._name,
                node=socket.gethostname(),
                host=_address_towards(self._towards),
                folder=self._folder,
                hold=ports.hold,
            )
            self._service = await compose(entry, value, context)
        except Exception as error:  # noqa: BLE001  the driver raises it, with its traceback
            return False, lent(encode(failure(error)))
        return True, []

    async def call(self, number: int, parts: Sequence[Part]) -> tuple[bool, list[Part]]:
        """Answer a call; one that was cancelled meanwhile answers with nothing."""
        task = self._calls[number] = asyncio.ensure_future(answer(self._service, parts))
        try:
            await asyncio.wait([task])
        finally:
            del self._calls[number]
        if task.cancelled():
            return False, []
        returned, answered = task.result()
        return returned, lent(answered)

    async def cancel(self, number: int) -> None:
        """Nobody waits for a call any more."""
        if number in self._calls:
            self._calls[number].cancel()

    async def stay(self) -> None:
        """Never returns: whoever waits learns of the end."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close the service."""
        for call in self._calls.values():
            call.cancel()
        await close(self._service)
        shutil.rmtree(self._folder, ignore_errors=True)


def _address_towards(host: str) -> str:
    """This node's own address on the way to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def lent(parts: Sequence[Part]) -> list[Any]:
    """Parts as Ray's object store takes them: a buffer's memory is copied once, into the store,
    and whoever gets it reads it there."""
    head, *buffers = parts
    return [head, *(pickle.PickleBuffer(buffer) for buffer in buffers)]
