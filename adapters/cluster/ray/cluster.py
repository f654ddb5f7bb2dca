"""Starts processes as Ray actors, and ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
from attrs.validators import gt, optional

from hexpo.adapters.cluster.ray import placing
from hexpo.adapters.cluster.ray.host import Host
from hexpo.adapters.cluster.ray.process import Bounds, RayProcess
from hexpo.adapters.cluster.wire import room
from hexpo.adapters.cluster.wire.roster import Roster
from hexpo.adapters.cluster.wire.starting import all_or_none
from hexpo.adapters.cluster.wire.warden import Warden
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed, MissingExtra, NotEnough


@attrs.frozen(kw_only=True)
class Config:
    """Settings of processes on a Ray cluster."""

    address: str = ""
    """Of a cluster that runs (`auto`: the one of this node); empty: one of its own, here."""
    cpus: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """CPUs of a cluster of its own; None: those of this machine. More than there are are allowed:
    for trying things out."""
    accelerators: int | None = None
    """Accelerators of a cluster of its own; None: what Ray finds."""
    device: str = "GPU"
    """What Ray calls an accelerator (`NPU` on Ascend)."""
    host: str = ""
    """This node's address, as the others reach it; empty: the one that Ray uses."""
    interface: str = ""
    """The network interface by which processes exchange tensors (`eth0`); empty: they choose."""
    place_seconds: float = attrs.field(default=30.0, validator=gt(0))
    """How long room may take to become free on a cluster that others use too, and a worker to
    begin."""
    start_seconds: float = attrs.field(default=600.0, validator=gt(0))
    """How long an entry may take until its service is ready."""
    close_seconds: float = attrs.field(default=20.0, validator=gt(0))
    """How long a service may take to close before its process is killed."""


def build(config: Config, *, folder: Path) -> Cluster:
    """A cluster that connects when it is first asked something.

    Args: folder: of the run; logs of processes on this node go to `processes` below it.
    Raises: MissingExtra: ray is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtra("cluster/ray needs ray: pip install 'hexpo[ray]'") from error
    return RayCluster(config, ray, folder=folder)


def _take_back_sigterm() -> None:
    """Whoever handled SIGTERM handles it again: Ray took it, to print a stack, and to end the
    process at a second one."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
        signal.siginterrupt(signal.SIGTERM, False)  # noqa: FBT003  as asyncio sets it


class RayCluster:
    """Implements Cluster. Where this process is connected to Ray already, it uses that."""

    def __init__(self, config: Config, ray: ModuleType, *, folder: Path) -> None:
        self._config, self._ray = config, ray
        self._bounds = Bounds(
            place=config.place_seconds, start=config.start_seconds, close=config.close_seconds
        )
        self._roster: Roster[RayProcess] = Roster(folder, release=self._release)
        self._groups: list[tuple[Any, set[str]]] = []
        self._owns_connection = False

    async def _connect(self, folder: Path) -> None:
        connecting = asyncio.ensure_future(asyncio.to_thread(self._initialise, folder))
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:  # it cannot be called back, but undone
            await asyncio.wait([connecting])
            await self._disconnect()
            raise
        _take_back_sigterm()

    def _initialise(self, folder: Path) -> None:
        if self._ray.is_initialized():
            return
        with contextlib.suppress(ImportError):  # its place moves; Ray reports nothing home of ours
            from ray._common.usage import usage_lib

            usage_lib.set_usage_stats_enabled_via_env_var(False)
        config = self._config
        own: dict[str, Any] = {
            "num_cpus": config.cpus,
            "num_gpus": config.accelerators,
            "include_dashboard": False,
            "_temp_dir": str(folder / "ray"),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, about its next versions
            try:
                self._ray.init(
                    address=config.address or "local",
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    **({} if config.address else own),
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise EngineFailed(
                    f"no Ray cluster answers at {config.address!r}: {error}; see `ray status`"
                ) from error
        self._owns_connection = True

    async def _disconnect(self) -> None:
        if self._owns_connection:
            self._owns_connection = False
            await asyncio.to_thread(self._ray.shutdown)

    @property
    def host(self) -> str:
        """As configured, or as Ray found it; a cluster of its own is all here."""
        if self._config.host or not self._config.address:
            return self._config.host or "127.0.0.1"
        return str(self._ray.util.get_node_ip_address())

    async def resources(self) -> Resources:
        """What is visible and free; Ray counts with some delay."""
        await self._roster.open(self._connect)
        free = await asyncio.to_thread(self._ray.available_resources)
        return placing.seen(free, self._config.device)

    async def start(self, wanted: Sequence[ProcessSpec]) -> Sequence[Process]:
        """All of them, ready to be called, or none."""
        units = room.units(wanted)
        self._roster.require_unused(spec.name for spec in wanted)
        warden = await self._roster.open(self._connect)
        places = await self._place(units)
        return await all_or_none(
            {spec.name: self._start(spec, places[spec.name], warden) for spec in wanted},
            undo=self._roster.undo,
        )

    async def _place(self, units: Sequence[room.Unit]) -> dict[str, dict[str, Any]]:
        """Reserve bundles: the options of each actor. Raises NotEnough."""
        device = self._config.device
        groups = placing.groups(units)
        await self._require(groups)
        made = []
        try:
            for group in groups:
                bundles = [placing.bundle(unit.needs, device) for unit in group.units]
                made.append(self._ray.util.placement_group(bundles, strategy=group.strategy))
            _, late = (
                await asyncio.to_thread(
                    self._ray.wait,
                    [group.ready() for group in made],
                    num_returns=len(made),
                    timeout=self._config.place_seconds,
                )
                if made
                else ([], [])
            )
            if late:
                await self._refuse(units)
        except BaseException:
            for group in made:
                self._ray.util.remove_placement_group(group)
            raise
        return self._options(groups, made)

    async def _refuse(self, units: Sequence[room.Unit]) -> None:
        """Raises NotEnough: what is wanted is there, but was not free in time."""
        visible = await asyncio.to_thread(self._ray.cluster_resources)
        where = f"the Ray cluster, for {self._config.place_seconds:g} s"
        room.require(
            room.total(unit.needs for unit in units),
            await self.resources(),
            placing.seen(visible, self._config.device),
            where=where,
        )
        raise NotEnough(f"{where}: the room is there, but in parts that are too small; ray status")

    async def _require(self, groups: Sequence[placing.Group]) -> None:
        """Compare with all that the cluster has, and with its largest node, before waiting."""
        device = self._config.device
        visible = placing.seen(await asyncio.to_thread(self._ray.cluster_resources), device)
        nodes = await asyncio.to_thread(self._ray.nodes)
        largest = room.largest(
            placing.seen(node["Resources"], device) for node in nodes if node["Alive"]
        )
        total = room.total(unit.needs for group in groups for unit in group.units)
        room.require(total, visible, visible, where="the Ray cluster")
        for name, needs in placing.on_one_node(groups):
            room.require(needs, largest, largest, where=f"one node of the Ray cluster, for {name}")

    def _options(
        self, groups: Sequence[placing.Group], made: Sequence[Any]
    ) -> dict[str, dict[str, Any]]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        found = {}
        for group, reserved in zip(groups, made, strict=True):
            names: set[str] = set()
            for index, unit in enumerate(group.units):
                for spec in unit.members:
                    names.add(spec.name)
                    found[spec.name] = {
                        **placing.options(
                            spec, unit, self._config.device, interface=self._config.interface
                        ),
                        "scheduling_strategy": PlacementGroupSchedulingStrategy(
                            reserved, placement_group_bundle_index=index
                        ),
                    }
            self._groups.append((reserved, names))
        return found

    async def _start(
        self, spec: ProcessSpec, options: dict[str, Any], warden: Warden
    ) -> RayProcess:
        tail = self._roster.tail(spec.name)
        actor = (
            self._ray.remote(Host)
            .options(**options)
            .remote(
                spec.name,
                node=socket.gethostname(),
                host=self.host,
                log=str(tail.path.resolve()),
                folder=str(warden.folder),
            )
        )
        process = self._roster.add(
            RayProcess(
                self._ray,
                spec,
                actor,
                bounds=self._bounds,
                tail=tail,
                ended=self._roster.ended,
            )
        )
        await process.ready()
        return process

    def _release(self, name: str) -> None:
        """Free what a process held, when no other of its group needs it any more."""
        for entry in tuple(self._groups):
            reserved, names = entry
            names.discard(name)
            if not names:
                self._groups.remove(entry)
                self._ray.util.remove_placement_group(reserved)

    async def close(self) -> None:
        """Stop whatever runs; end a Ray cluster of its own. Safe to call twice."""
        await self._roster.close(self._disconnect)
