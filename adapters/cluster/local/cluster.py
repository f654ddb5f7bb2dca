"""Starts processes on this machine, and ends them all."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
from attrs.validators import gt, optional

from hexpo.adapters.cluster.local.channel import Channel
from hexpo.adapters.cluster.local.devices import Devices, cpus, memory_gib
from hexpo.adapters.cluster.local.process import Bounds, LocalProcess
from hexpo.adapters.cluster.wire import room
from hexpo.adapters.cluster.wire.roster import Roster, safe
from hexpo.adapters.cluster.wire.starting import all_or_none
from hexpo.adapters.cluster.wire.warden import Warden
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed, NotEnough

_log = logging.getLogger(__name__)
_CHILD = "hexpo.adapters.cluster.local.child"


@attrs.frozen(kw_only=True)
class Config:
    """Settings of processes on this machine."""

    cpus: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """How many processes may take together; None: those that this process may use."""
    oversubscribe: bool = False
    """Start processes that want more CPUs than there are, with a warning. For trying things out."""
    accelerators: tuple[str, ...] = ()
    """The devices that processes may get, as the platform's own variable names them."""
    visibility: str = "CUDA_VISIBLE_DEVICES"
    """The variable that shows a process its devices (ROCR_VISIBLE_DEVICES, ...)."""
    start_seconds: float = attrs.field(default=600.0, validator=gt(0))
    """How long an entry may take until its service is ready."""
    close_seconds: float = attrs.field(default=20.0, validator=gt(0))
    """How long a service may take to close before its process is told to end."""
    force_seconds: float = attrs.field(default=5.0, validator=gt(0))
    """How long a process may take to end before it is killed."""


def build(config: Config, *, folder: Path) -> Cluster:
    """A cluster of this machine. Args: folder: of the run; logs go to `processes` below it."""
    return LocalCluster(config, folder=folder)


class LocalCluster:
    """Implements Cluster; belongs to the event loop that first starts something."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        self._config = config
        self._bounds = Bounds(
            start=config.start_seconds, close=config.close_seconds, force=config.force_seconds
        )
        self._visible = Resources(
            cpus=config.cpus or cpus(),
            accelerators=len(config.accelerators),
            memory_gib=memory_gib(),
        )
        self._devices = Devices(config.accelerators)
        self._taken: dict[str, tuple[room.Unit, set[str]]] = {}
        self._roster: Roster[LocalProcess] = Roster(folder, release=self._release)

    @property
    def host(self) -> str:
        """All of it is here."""
        return "127.0.0.1"

    async def resources(self) -> Resources:
        """What is visible and free."""
        return self._free()

    def _free(self) -> Resources:
        taken = room.total(unit.needs for unit, _ in self._taken.values())
        return room.left(self._visible, taken)

    async def start(self, wanted: Sequence[ProcessSpec]) -> Sequence[Process]:
        """All of them, ready to be called, or none."""
        warden = await self._roster.open()
        places = self._take(wanted)
        return await all_or_none(
            {spec.name: self._start(spec, places[spec.name], warden) for spec in wanted},
            undo=self._roster.undo,
        )

    def _take(self, wanted: Sequence[ProcessSpec]) -> dict[str, Mapping[str, str]]:
        """Reserve devices: the variables that each process gets."""
        units = room.units(wanted)
        self._roster.require_unused(spec.name for spec in wanted)
        needs, free = room.total(unit.needs for unit in units), self._free()
        if self._config.oversubscribe and (more := room.over(needs, free).get("cpus")):
            _log.warning("oversubscribed, hence slow: %s", more)
            needs = attrs.evolve(needs, cpus=min(needs.cpus, free.cpus))
        room.require(needs, free, self._visible, where="this machine")
        places: dict[str, Mapping[str, str]] = {}
        try:
            for unit in units:
                key = unit.members[0].name
                shown = self._devices.take(key, unit.needs.accelerators)
                self._taken[key] = unit, {spec.name for spec in unit.members}
                variables = {self._config.visibility: ",".join(shown)} if self._devices else {}
                places.update({spec.name: variables for spec in unit.members})
        except NotEnough:  # enough in all, but in parts that are too small
            for name in places:
                self._release(name)
            raise
        return places

    def _release(self, name: str) -> None:
        """Free what a process held, when no sharer needs it any more."""
        for key, (_, members) in list(self._taken.items()):
            members.discard(name)
            if not members:
                self._devices.release(key)
                del self._taken[key]

    async def _start(
        self, spec: ProcessSpec, variables: Mapping[str, str], warden: Warden
    ) -> LocalProcess:
        folder = Path(tempfile.mkdtemp(prefix=f"{safe(spec.name)}-", dir=warden.folder))
        tail = self._roster.tail(spec.name)
        ours, theirs = socket.socketpair()
        try:
            with tail.path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *_command(spec, variables, theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineFailed(f"process {spec.name!r} could not be started: {error}") from error
        finally:
            theirs.close()
        started = self._roster.add(
            LocalProcess(
                spec,
                process,
                Channel(ours),
                folder=folder,
                tail=tail,
                warden=warden,
                bounds=self._bounds,
                ended=self._roster.ended,
            )
        )
        place = {"name": spec.name, "node": socket.gethostname(), "folder": str(folder)}
        await started.ready(place)
        return started

    async def close(self) -> None:
        """Stop whatever runs. Safe to call twice."""
        await self._roster.close()


def _command(spec: ProcessSpec, variables: Mapping[str, str], number: int) -> list[str]:
    """What to execute. `env` sets variables before the interpreter starts, as LD_PRELOAD needs."""
    settings = {**variables, **spec.environment}
    prefix = ["env", *(f"{name}={value}" for name, value in settings.items())] if settings else []
    python = spec.python or sys.executable
    return [*prefix, python, "-m", _CHILD, str(number), str(os.getpid())]
