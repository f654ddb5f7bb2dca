"""What runs in an actor: one service, its calls side by side. Knows nothing of Ray."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.cluster.wire import ports
from hexpo.adapters.cluster.wire.codec import Part, decode, encode
from hexpo.adapters.cluster.wire.failures import failure
from hexpo.adapters.cluster.wire.service import answer, close, compose
from hexpo.application.ports.cluster import Context


@attrs.frozen(kw_only=True)
class Place:
    """Where an actor runs."""

    pid: int
    node: str
    folder: str
    log: str
    """The file that it writes to; empty when it lies on another node than its driver."""


class Host:
    """The body of the actor."""

    def __init__(self, name: str, driver: str, log: str, folder: str) -> None:
        self._name, self._driver, self._log, self._parent = name, driver, log, folder
        self._calls: dict[int, asyncio.Task[tuple[bool, list[Part]]]] = {}
        self._service: Any = None
        self._folder = ""

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
        return Place(pid=os.getpid(), node=node, folder=self._folder, log=self._log if near else "")

    async def compose(self, parts: Sequence[Part]) -> tuple[bool, list[Part]]:
        """Make the service. Nothing is raised: what failed is said as a value."""
        try:
            entry, value = decode(parts)
            context = Context(
                name=self._name, node=socket.gethostname(), folder=self._folder, hold=ports.hold
            )
            self._service = await compose(entry, value, context)
        except Exception as error:  # noqa: BLE001  the driver raises it, with its traceback
            return False, encode(failure(error))
        return True, []

    async def call(self, number: int, parts: Sequence[Part]) -> tuple[bool, list[Part]]:
        """Answer a call; one that was cancelled meanwhile answers with nothing."""
        task = self._calls[number] = asyncio.ensure_future(answer(self._service, parts))
        try:
            await asyncio.wait([task])
        finally:
            del self._calls[number]
        return (False, []) if task.cancelled() else task.result()

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
