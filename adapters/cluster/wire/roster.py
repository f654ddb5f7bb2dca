"""The processes of one cluster: their names, their logs, and the end of them all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from hexpo.adapters.cluster.wire.logs import Tail
from hexpo.adapters.cluster.wire.warden import Warden
from hexpo.domain.errors import EngineFailed, WrongValue

_FOLLOWED = 0.25
"""Seconds between two looks at the logs."""


class Stoppable(Protocol):
    """What a roster needs of a process."""

    @property
    def name(self) -> str: ...

    async def stop(self) -> None: ...


P = TypeVar("P", bound=Stoppable)


class Roster(Generic[P]):
    """Who runs. Belongs to the event loop that first opens it."""

    def __init__(self, folder: Path, *, release: Callable[[str], None]) -> None:
        """Args: folder: of the run; logs go to `processes` below it.
        release: frees what the process of this name held; called once it has ended.
        """
        self._logs, self._release = folder / "processes", release
        self._running: dict[str, P] = {}
        self._tails: dict[str, Tail] = {}
        self._warden: Warden | None = None
        self._following: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def open(self, begin: Callable[[Path], Awaitable[None]] | None = None) -> Warden:
        """The warden, started when this is first asked.

        Args: begin: awaited once before, with the folder that goes with the cluster.
        Raises: EngineFailed: the cluster is closed. What `begin` raises: nothing stays then.
        """
        async with self._lock:
            if self._closed:
                raise EngineFailed("the cluster is closed; nothing starts any more")
            if self._warden is None:
                self._logs.mkdir(parents=True, exist_ok=True)
                warden = await Warden.start()
                try:
                    if begin is not None:
                        await begin(warden.folder)
                except BaseException:
                    await warden.close()
                    raise
                self._warden = warden
                self._following = asyncio.ensure_future(self._follow())
            return self._warden

    def require_unused(self, names: Iterable[str]) -> None:
        """Raises WrongValue: a name is taken by a process that runs."""
        if running := [name for name in names if name in self._running]:
            raise WrongValue(f"processes named {', '.join(running)} run already")

    def tail(self, name: str) -> Tail:
        """What a process of this name will write, followed from here on."""
        tail = self._tails[name] = Tail(name, self._logs / f"{safe(name)}.log")
        return tail

    def add(self, process: P) -> P:
        """It runs, or is about to."""
        self._running[process.name] = process
        return process

    def ended(self, name: str) -> None:
        """It has ended, or never began. Safe to call twice."""
        self._running.pop(name, None)
        self._tails.pop(name, None)
        self._release(name)

    async def undo(self, name: str) -> None:
        """End a process of a start that failed."""
        if (process := self._running.get(name)) is not None:
            await process.stop()
        self.ended(name)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOWED)
            for tail in tuple(self._tails.values()):
                tail.pass_on()

    async def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Stop whatever runs, await `last`, end the warden. Safe to call twice."""
        self._closed = True
        async with asyncio.TaskGroup() as stops:
            for process in tuple(self._running.values()):
                stops.create_task(process.stop())
        async with self._lock:
            following, self._following = self._following, None
            warden, self._warden = self._warden, None
            if following is not None:
                following.cancel()
                await asyncio.wait([following])
            if last is not None:
                await last()
            if warden is not None:
                await warden.close()


def safe(name: str) -> str:
    """A process's name as a file's."""
    return re.sub(r"[^\w.-]", "_", name)
