"""Clusters under test, and what they are asked.

Entries and their service lie in tests/data/cluster; a process finds them by the PYTHONPATH that it
inherits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.cluster import local
from hexpo.adapters.cluster import ray as on_ray
from hexpo.adapters.simulated import clock
from hexpo.adapters.simulated import cluster as simulated
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources

CPUS = 2.0


@attrs.frozen(kw_only=True)
class Bench:
    """A cluster of two CPUs under test."""

    cluster: Cluster
    kill: Callable[[Process], None]
    """As `kill -9` does."""
    fails_within: float
    """Seconds until a death has reached a waiting call."""
    notices_within: float
    """Seconds until a shortage is told."""
    counts_within: float
    """Seconds until room that was given back is counted as free."""
    separate: bool
    """Its processes are processes."""
    killed: str = "SIGKILL"
    """What a death by `kill` says."""
    left: str = "exit code 3"
    """What a death by `os._exit(3)` says."""
    frees_each: bool = True
    """Room comes back with each process, not with the last of those that started together."""


def spec(name: str, entry: str = "desk", value: Any = None, **wanted: Any) -> ProcessSpec:
    """A process that needs half a CPU, unless told otherwise."""
    wanted.setdefault("needs", Resources(cpus=0.5))
    return ProcessSpec(name=name, entry=f"cluster_entries:{entry}", value=value, **wanted)


@contextlib.asynccontextmanager
async def _simulated(_: Path) -> AsyncIterator[Bench]:
    config = simulated.Config(visible=Resources(cpus=CPUS), start_seconds=2, close_seconds=1)
    cluster = simulated.build(config)
    try:
        yield Bench(
            cluster=cluster,
            kill=lambda process: cluster.kill(process.name),
            fails_within=0.0,
            notices_within=0.0,
            counts_within=0.0,
            separate=False,
        )
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def _local(folder: Path) -> AsyncIterator[Bench]:
    config = local.Config(start_seconds=2, close_seconds=1, force_seconds=1, cpus=CPUS)
    cluster = local.build(config, folder=folder)
    try:
        yield Bench(
            cluster=cluster,
            kill=lambda process: os.kill(process.pid, signal.SIGKILL),
            fails_within=2.0,
            notices_within=1.0,
            counts_within=1.0,
            separate=True,
        )
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def _ray(folder: Path) -> AsyncIterator[Bench]:
    config = on_ray.Config(start_seconds=2, close_seconds=1, place_seconds=30)
    cluster = on_ray.build(config, folder=folder)
    try:
        yield Bench(
            cluster=cluster,
            kill=lambda process: os.kill(process.pid, signal.SIGKILL),
            fails_within=10.0,
            notices_within=30.0,
            counts_within=10.0,
            separate=True,
            killed="the worker ended",
            left="the worker ended.*",
            frees_each=False,
        )
    finally:
        await cluster.close()


ADAPTERS = {
    "simulated": (clock.run, _simulated),
    "local": (asyncio.run, _local),
    "ray": (asyncio.run, _ray),
}
Promise = Callable[[Bench], Awaitable[None]]
Holds = Callable[[Promise], None]


async def require_free(bench: Bench, cpus: float) -> None:
    """So many are free, as soon as the cluster counts them."""
    loop = asyncio.get_running_loop()
    until = loop.time() + bench.counts_within
    while (free := (await bench.cluster.resources()).cpus) != cpus:
        assert loop.time() < until, f"{free} CPUs are free, not {cpus}"
        await asyncio.sleep(0.05)
