"""Starts processes as Ray actors, and ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
from attrs.validators import gt, optional

from hexpo.adapters.cluster.ray import placing
from hexpo.adapters.cluster.ray.host import Host
from hexpo.adapters.cluster.ray.process import RayProcess
from hexpo.adapters.cluster.wire import room
from hexpo.adapters.cluster.wire.logs import Tail
from hexpo.adapters.cluster.wire.starting import all_or_none
from hexpo.adapters.cluster.wire.warden import Warden
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed, MissingExtra, NotEnough, WrongValue

_FOLLOWED = 0.25
"""Seconds between two looks at the logs."""


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
    place_seconds: float = attrs.field(default=30.0, validator=gt(0))
    """How long room may take to become free, on a cluster that others use too."""
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


class RayCluster:
    """Implements Cluster. Where this process is connected to Ray already, it uses that."""

    def __init__(self, config: Config, ray: ModuleType, *, folder: Path) -> None:
        self._config, self._ray, self._logs = config, ray, folder / "processes"
        self._running: dict[str, RayProcess] = {}
        self._groups: list[tuple[Any, set[str]]] = []
        self._tails: dict[str, Tail] = {}
        self._warden: Warden | None = None
        self._following: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._owns_connection = self._closed = False

    async def _connect(self) -> Warden:
        async with self._lock:
            if self._closed:
                raise EngineFailed("the cluster is closed; nothing starts any more")
            if self._warden is None:
                self._logs.mkdir(parents=True, exist_ok=True)
                self._warden = await Warden.start()
                self._following = asyncio.ensure_future(self._follow())
                await asyncio.to_thread(self._initialise, self._warden.folder)
            return self._warden

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

    async def resources(self) -> Resources:
        """What is visible and free; Ray counts with some delay."""
        await self._connect()
        free = await asyncio.to_thread(self._ray.available_resources)
        return placing.seen(free, self._config.device)

    async def start(self, wanted: Sequence[ProcessSpec]) -> Sequence[Process]:
        """All of them, ready to be called, or none."""
        units = room.units(wanted)
        if running := [spec.name for spec in wanted if spec.name in self._running]:
            raise WrongValue(f"processes named {', '.join(running)} run already")
        warden = await self._connect()
        places = await self._place(units)
        return await all_or_none(
            {spec.name: self._start(spec, places[spec.name], warden) for spec in wanted},
            undo=self._undo,
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
                wanted, free = room.total(unit.needs for unit in units), await self.resources()
                raise NotEnough(
                    f"the Ray cluster: {wanted} wanted, {free} free after"
                    f" {self._config.place_seconds:g} s; see `ray status` for who has the rest"
                )
        except BaseException:
            for group in made:
                self._ray.util.remove_placement_group(group)
            raise
        return self._options(groups, made)

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
        for group in groups:
            if group.strategy == "STRICT_PACK":
                needs = room.total(unit.needs for unit in group.units)
                name = group.units[0].members[0].together
                room.require(needs, largest, largest, where=f"one node for {name}")

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
                        **placing.options(spec, unit, self._config.device),
                        "scheduling_strategy": PlacementGroupSchedulingStrategy(
                            reserved, placement_group_bundle_index=index
                        ),
                    }
            self._groups.append((reserved, names))
        return found

    async def _start(
        self, spec: ProcessSpec, options: dict[str, Any], warden: Warden
    ) -> RayProcess:
        safe = re.sub(r"[^\w.-]", "_", spec.name)
        tail = self._tails[spec.name] = Tail(spec.name, self._logs / f"{safe}.log")
        actor = (
            self._ray.remote(Host)
            .options(**options)
            .remote(spec.name, socket.gethostname(), str(tail.path.resolve()), str(warden.folder))
        )
        process = self._running[spec.name] = RayProcess(
            self._ray,
            spec,
            actor,
            close_seconds=self._config.close_seconds,
            tail=tail,
            ended=self._release,
        )
        await process.ready(self._config.start_seconds)
        return process

    def _release(self, name: str) -> None:
        """Free what a process held, when no other of its group needs it any more."""
        self._running.pop(name, None)
        self._tails.pop(name, None)
        for entry in tuple(self._groups):
            reserved, names = entry
            names.discard(name)
            if not names:
                self._groups.remove(entry)
                self._ray.util.remove_placement_group(reserved)

    async def _undo(self, name: str) -> None:
        """End a process of a start that failed."""
        if (process := self._running.get(name)) is not None:
            await process.stop()
        self._release(name)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOWED)
            for tail in tuple(self._tails.values()):
                tail.pass_on()

    async def close(self) -> None:
        """Stop whatever runs; end a Ray cluster of its own. Safe to call twice."""
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
            if self._owns_connection:
                self._owns_connection = False
                await asyncio.to_thread(self._ray.shutdown)
            if warden is not None:
                await warden.close()
