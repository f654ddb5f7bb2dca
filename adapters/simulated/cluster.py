"""A cluster in virtual time: services live in this event loop, and die when a test says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import attrs

from hexpo.adapters.cluster.wire import ports, room
from hexpo.adapters.cluster.wire.codec import Part, decode, encode
from hexpo.adapters.cluster.wire.failures import failure, revived
from hexpo.adapters.cluster.wire.service import answer, close, compose, dead
from hexpo.adapters.cluster.wire.starting import all_or_none
from hexpo.application.ports.cluster import Context, Death, Process, ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed, WrongValue


@attrs.frozen(kw_only=True)
class Config:
    """The machine that there is not."""

    visible: Resources = attrs.field(factory=lambda: Resources(cpus=64, memory_gib=512))
    """What processes may take together."""
    start_seconds: float = 600.0
    """How long an entry may take, in virtual time."""
    close_seconds: float = 20.0
    """How long a service may take to close."""


def build(config: Config) -> SimulatedCluster:
    """An empty cluster."""
    return SimulatedCluster(config)


def _sent(parts: Sequence[Part]) -> list[bytearray]:
    """Parts as they arrive: memory of their own."""
    return [bytearray(part) for part in parts]


class SimulatedProcess:
    """Implements Process: a service in this loop; what crosses is pickled as if it went far."""

    def __init__(self, spec: ProcessSpec, pid: int, *, close_seconds: float) -> None:
        self.spec, self._pid, self._close_seconds = spec, pid, close_seconds
        self._service: Any = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """As wanted."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """A number of its own; no process has it."""
        return self._pid

    async def compose(self, context: Context) -> None:
        """Make the service."""
        self._service = await compose(
            self.spec.entry, decode(_sent(encode(self.spec.value))), context
        )

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the service."""
        if not self._death.done():
            sent = _sent(encode((method, arguments, options)))
            task = asyncio.ensure_future(answer(self._service, sent))
            self._calls.add(task)
            try:
                waited: list[asyncio.Future[Any]] = [task, self._death]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not task.cancelled():
                    returned, parts = task.result()
                    if not returned:
                        raise revived(decode(parts), name=self.name)
                    return decode(_sent(parts))
            finally:
                self._calls.discard(task)
                task.cancel()
        death = await self.death()
        raise dead(self.name, death.cause)

    async def death(self) -> Death:
        """Wait until it ends."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """End it. Safe to call twice."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        for task in self._calls:
            task.cancel()
        closing = asyncio.ensure_future(close(self._service))
        waited: list[asyncio.Future[Any]] = [closing, self._death]
        await asyncio.wait(waited, timeout=self._close_seconds)
        late = not closing.done()
        closing.cancel()
        self.end("killed: it did not close" if late else "ended by itself", expected=True)

    def end(self, cause: str, *, expected: bool = False) -> None:
        """It dies now: every waiting call fails."""
        if not self._death.done():
            self._death.set_result(Death(name=self.name, cause=cause, expected=expected))
        for task in self._calls:
            task.cancel()


class SimulatedCluster:
    """Implements Cluster."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._pids = itertools.count(1)
        self._running: dict[str, SimulatedProcess] = {}
        self._closed = False

    @property
    def host(self) -> str:
        """All of it is here."""
        return "127.0.0.1"

    async def resources(self) -> Resources:
        """What is visible and free."""
        self._forget_the_dead()
        units = room.units([process.spec for process in self._running.values()])
        return room.left(self._config.visible, room.total(unit.needs for unit in units))

    async def start(self, wanted: Sequence[ProcessSpec]) -> Sequence[Process]:
        """All of them, ready to be called, or none."""
        if self._closed:
            raise EngineFailed("the cluster is closed; nothing starts any more")
        needs = room.total(unit.needs for unit in room.units(wanted))
        visible = self._config.visible
        room.require(needs, await self.resources(), visible, where="this simulated machine")
        if running := [spec.name for spec in wanted if spec.name in self._running]:
            raise WrongValue(f"processes named {', '.join(running)} run already")
        return await all_or_none({spec.name: self._start(spec) for spec in wanted}, undo=self._undo)

    async def _start(self, spec: ProcessSpec) -> SimulatedProcess:
        process = SimulatedProcess(spec, next(self._pids), close_seconds=self._config.close_seconds)
        self._running[spec.name] = process
        context = Context(name=spec.name, node="simulated", folder="", hold=ports.hold)
        composing = asyncio.ensure_future(process.compose(context))
        dying = asyncio.ensure_future(process.death())
        try:
            await asyncio.wait(
                {composing, dying},
                timeout=self._config.start_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if dying.done():
                raise dead(spec.name, dying.result().cause)
            if not composing.done():
                raise EngineFailed(
                    f"process {spec.name!r} was not ready after {self._config.start_seconds:g} s"
                )
            if error := composing.exception():
                raise revived(failure(error), name=spec.name)
        finally:
            composing.cancel()
            dying.cancel()
        return process

    async def _undo(self, name: str) -> None:
        if (process := self._running.pop(name, None)) is not None:
            await process.stop()

    def _forget_the_dead(self) -> None:
        self._running = {n: p for n, p in self._running.items() if not p._death.done()}

    def kill(self, name: str, cause: str = "killed by SIGKILL") -> None:
        """End a process from outside, as a fault of a test."""
        self._running.pop(name).end(cause)

    async def close(self) -> None:
        """Stop whatever runs. Safe to call twice."""
        self._closed = True
        async with asyncio.TaskGroup() as stops:
            for process in self._running.values():
                stops.create_task(process.stop())
        self._running = {}
