"""What every cluster promises, kills and faults included.

Entries and their service lie in tests/data/cluster; a process finds them by the PYTHONPATH that it
inherits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from hexpo.adapters.cluster import local
from hexpo.adapters.cluster import ray as on_ray
from hexpo.adapters.simulated import clock
from hexpo.adapters.simulated import cluster as simulated
from hexpo.application.ports.cluster import Cluster, Process, ProcessSpec, Resources
from hexpo.domain.errors import EngineFailed, NotEnough, WrongValue

ENTRIES = Path(__file__).parents[1] / "data" / "cluster"
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


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    """Where this process and those that it starts find the entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ENTRIES))
        patch.syspath_prepend(str(ENTRIES))
        yield


@pytest.fixture(scope="module")
def ray_here(path: None) -> Iterator[None]:
    """One Ray for all tests of this module: its start takes seconds."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ray's own next versions
        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


ADAPTERS = {
    "simulated": (clock.run, _simulated),
    "local": (asyncio.run, _local),
    "ray": (asyncio.run, _ray),
}
Promise = Callable[[Bench], Awaitable[None]]


@pytest.fixture(params=list(ADAPTERS))
def holds(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Promise], None]:
    """Runs a promise on an adapter, in real or in virtual time."""
    run, opened = ADAPTERS[request.param]
    if request.param == "ray":
        request.getfixturevalue("ray_here")

    def check(promise: Promise) -> None:
        async def main() -> None:
            async with opened(tmp_path) as bench:
                await promise(bench)

        run(main())

    return check


Holds = Callable[[Promise], None]


async def require_free(bench: Bench, cpus: float) -> None:
    """So many are free, as soon as the cluster counts them."""
    loop = asyncio.get_running_loop()
    until = loop.time() + bench.counts_within
    while (free := (await bench.cluster.resources()).cpus) != cpus:
        assert loop.time() < until, f"{free} CPUs are free, not {cpus}"
        await asyncio.sleep(0.05)


def test_a_process_composes_itself_from_a_plain_value(holds: Holds) -> None:
    """The entry's value arrives whole, and the service answers by the names of its methods."""

    async def promise(bench: Bench) -> None:
        value = {"rank": 1, "layers": (1, 2), "nothing": None}
        (process,) = await bench.cluster.start([spec("a", value=value)])
        assert (process.name, await process.call("value")) == ("a", value)
        assert await process.call("echo", value="x") == "x"
        assert (process.pid != os.getpid()) or not bench.separate

    holds(promise)


def test_calls_run_side_by_side(holds: Holds) -> None:
    """One that waits does not keep another from being answered."""

    async def promise(bench: Bench) -> None:
        (process,) = await bench.cluster.start([spec("a")])
        waiting = [asyncio.ensure_future(process.call("pass_gate")) for _ in range(20)]
        await process.call("open_gate")
        assert await asyncio.gather(*waiting) == ["passed"] * 20

    holds(promise)


def test_an_exception_crosses_with_its_type_and_traceback(holds: Holds) -> None:
    """F5: the first cause is the one that is shown, where it happened."""

    async def promise(bench: Bench) -> None:
        (process,) = await bench.cluster.start([spec("a")])
        with pytest.raises(WrongValue, match="too cold") as caught:
            await process.call("refuse", "too cold")
        (note,) = caught.value.__notes__
        assert "process 'a'" in note
        assert "in refuse" in note
        assert await process.call("echo", 1) == 1

    holds(promise)


def test_what_cannot_travel_fails_its_own_call_alone(holds: Holds) -> None:
    """An exception or a result that has no pickle, and a method that is not there."""

    async def promise(bench: Bench) -> None:
        (process,) = await bench.cluster.start([spec("a")])
        with pytest.raises(EngineFailed, match="Stubborn"):
            await process.call("raise_unpicklable")
        with pytest.raises(Exception, match="pickle"):
            await process.call("unpicklable")
        with pytest.raises(Exception, match="pickle"):
            await process.call("echo", lambda: None)
        with pytest.raises(WrongValue, match=r"no method 'ech'.*echo"):
            await process.call("ech")
        with pytest.raises(WrongValue, match="no method"):
            await process.call("__init__")
        assert await process.call("echo", 1) == 1

    holds(promise)


def test_tensors_cross_whole_and_are_the_receivers(holds: Holds) -> None:
    """Small ones inside the pickle, large ones beside it: writing into one changes no other."""

    async def promise(bench: Bench) -> None:
        (process,) = await bench.cluster.start([spec("a")])
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            for size in (0, 3, 100_000):
                tensor = (torch.arange(2 * size) % 2).view(2, size).to(dtype)
                back = await process.call("echo", {"straight": tensor, "turned": tensor.T})
                assert torch.equal(back["straight"], tensor)
                assert torch.equal(back["turned"], tensor.T)
                assert back["straight"].dtype == dtype
                before = tensor.clone()
                filled = await process.call("fill", tensor)
                assert torch.equal(filled, torch.full_like(tensor, 7))
                filled.zero_()
                assert torch.equal(tensor, before)

    holds(promise)


def test_cancelling_a_call_cancels_it_over_there(holds: Holds) -> None:
    """Nothing goes on for a caller that is gone."""

    async def promise(bench: Bench) -> None:
        (process,) = await bench.cluster.start([spec("a")])
        waiting = [asyncio.ensure_future(process.call("wait")) for _ in range(3)]
        assert await process.call("echo", 1) == 1  # the three have arrived
        waiting[0].cancel()
        waiting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        async with asyncio.timeout(5):
            while await process.call("cancelled") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not waiting[2].done()
        waiting[2].cancel()

    holds(promise)


def test_a_shortage_is_told_before_anything_starts(holds: Holds) -> None:
    """O1: both numbers, at once, and what was free stays free."""

    async def promise(bench: Bench) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(NotEnough, match=r"3 CPUs wanted, 2 free of 2 visible"):
            await bench.cluster.start([spec(f"{i}", needs=Resources(cpus=1)) for i in range(3)])
        assert asyncio.get_running_loop().time() - began <= bench.notices_within
        with pytest.raises(NotEnough, match=r"1 accelerators wanted, 0 free of 0 visible"):
            await bench.cluster.start([spec("a", needs=Resources(accelerators=1))])
        await require_free(bench, CPUS)

    holds(promise)


def test_sharers_of_a_device_need_what_the_largest_needs(holds: Holds) -> None:
    """Three on two CPUs, as two of them take turns; all of it comes back when they end."""

    async def promise(bench: Bench) -> None:
        wanted = [
            spec("train", share="device", needs=Resources(cpus=1.5)),
            spec("rollout", share="device", needs=Resources(cpus=1)),
            spec("other", needs=Resources(cpus=0.5)),
        ]
        processes = await bench.cluster.start(wanted)
        await require_free(bench, 0)
        assert [process.name for process in processes] == ["train", "rollout", "other"]
        for process in processes:
            await process.stop()
        await require_free(bench, CPUS)

    holds(promise)


def test_a_name_is_unique_among_those_that_run(holds: Holds) -> None:
    """Names stand in logs and errors; one that ended may come back."""

    async def promise(bench: Bench) -> None:
        with pytest.raises(WrongValue, match="twice: a"):
            await bench.cluster.start([spec("a"), spec("a")])
        (first,) = await bench.cluster.start([spec("a")])
        with pytest.raises(WrongValue, match="a run already"):
            await bench.cluster.start([spec("a")])
        await first.stop()
        (second,) = await bench.cluster.start([spec("a", value=2)])
        assert await second.call("value") == 2

    holds(promise)


def test_a_kill_fails_every_waiting_call_with_its_cause(holds: Holds) -> None:
    """F5, O3: kill -9 during calls; the others work on, and the room is free again."""

    async def promise(bench: Bench) -> None:
        victim, other = await bench.cluster.start([spec("victim"), spec("other")])
        waiting = [asyncio.ensure_future(victim.call("wait")) for _ in range(3)]
        assert await victim.call("echo", 1) == 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        bench.kill(victim)
        for call in waiting:
            with pytest.raises(EngineFailed, match=rf"(?s)'victim'.*{bench.killed}"):
                await call
        assert loop.time() - began <= bench.fails_within
        death = await victim.death()
        assert (death.name, death.expected) == ("victim", False)
        assert bench.killed in death.cause
        with pytest.raises(EngineFailed, match=bench.killed):
            await victim.call("echo", 1)
        await victim.stop()
        assert await other.call("echo", 1) == 1
        await require_free(bench, CPUS - (0.5 if bench.frees_each else 1))

    holds(promise)


def test_a_process_that_leaves_is_a_death_with_its_code_and_last_words(holds: Holds) -> None:
    """R1: the log's last lines, and last the cause."""

    async def promise(bench: Bench) -> None:
        if not bench.separate:
            return
        (process,) = await bench.cluster.start([spec("a")])
        await process.call("say", "the disk is full")
        with pytest.raises(EngineFailed, match=rf"(?s)the disk is full.*{bench.left}\Z"):
            await process.call("leave", 3)
        death = await process.death()
        assert re.search(bench.left, death.cause)
        assert "the disk is full" in Path(death.log).read_text()  # noqa: ASYNC240

    holds(promise)


def test_an_entry_that_raises_starts_none(holds: Holds) -> None:
    """O5: its own error is raised, and those that had started are gone."""

    async def promise(bench: Bench) -> None:
        with pytest.raises(WrongValue, match="no such model: tiny") as caught:
            await bench.cluster.start([spec("good"), spec("bad", "broken", value="tiny")])
        assert "in broken" in caught.value.__notes__[0]
        await require_free(bench, CPUS)
        (again,) = await bench.cluster.start([spec("good")])
        assert await again.call("echo", 1) == 1

    holds(promise)


def test_an_entry_that_is_not_there_says_so(holds: Holds) -> None:
    """A misspelt function."""

    async def promise(bench: Bench) -> None:
        with pytest.raises(WrongValue, match="cluster_entries:dsek"):
            await bench.cluster.start([spec("a", "dsek")])

    holds(promise)


def test_an_entry_that_is_never_ready_is_ended_in_time(holds: Holds) -> None:
    """F4: a bound, and what was waited for."""

    async def promise(bench: Bench) -> None:
        with pytest.raises(EngineFailed, match="'slow' was not ready after 2 s"):
            await bench.cluster.start([spec("good"), spec("slow", "late")])
        await require_free(bench, CPUS)

    holds(promise)


def test_cancelling_a_start_leaves_nothing(holds: Holds) -> None:
    """F7: also before anything was ready."""

    async def promise(bench: Bench) -> None:
        starting = asyncio.ensure_future(bench.cluster.start([spec("good"), spec("slow", "late")]))
        await asyncio.sleep(0.5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await require_free(bench, CPUS)

    holds(promise)


def test_stopping_closes_the_service_first(holds: Holds, tmp_path: Path) -> None:
    """A stop is expected, releases waiting calls, and may be asked for twice."""

    async def promise(bench: Bench) -> None:
        note = tmp_path / "note"
        (process,) = await bench.cluster.start([spec("a", value={"closed": str(note)})])
        waiting = asyncio.ensure_future(process.call("wait"))
        await process.call("echo", 1)
        await asyncio.gather(process.stop(), process.stop())
        assert note.read_text() == "closed"
        assert (await process.death()).expected
        with pytest.raises(EngineFailed):
            await waiting

    holds(promise)


@pytest.mark.parametrize("how", ["hangs in close", "blocks its loop"])
def test_a_service_that_does_not_close_is_ended_by_force(holds: Holds, how: str) -> None:
    """F7: the stop has a bound, whatever the service does."""

    async def promise(bench: Bench) -> None:
        blocks = how == "blocks its loop"
        if blocks and not bench.separate:
            return
        (process,) = await bench.cluster.start([spec("a", "desk" if blocks else "endless")])
        calls = [asyncio.ensure_future(process.call("spin", 60.0))] if blocks else []
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await process.stop()
        assert time.monotonic() - began < 5
        for call in calls:
            with pytest.raises(EngineFailed):
                await call

    holds(promise)


def test_a_closed_cluster_starts_nothing(holds: Holds) -> None:
    """Closing twice is safe; what ran is dead, and says that it was asked to be."""

    async def promise(bench: Bench) -> None:
        processes = await bench.cluster.start([spec("a"), spec("b", "endless")])
        await asyncio.gather(bench.cluster.close(), bench.cluster.close())
        for process in processes:
            assert (await process.death()).expected
            with pytest.raises(EngineFailed):
                await process.call("echo", 1)
        with pytest.raises(EngineFailed, match="closed"):
            await bench.cluster.start([spec("c")])

    holds(promise)


def test_the_environment_is_there_before_the_interpreter(holds: Holds) -> None:
    """Thread settings count only when set before torch loads; a child loads none by itself."""

    async def promise(bench: Bench) -> None:
        if not bench.separate:
            return
        wanted = spec("a", environment={"OMP_NUM_THREADS": "1", "HEXPO_SAID": "a b=c"})
        process, other = await bench.cluster.start([wanted, spec("b")])
        assert await process.call("variable", "OMP_NUM_THREADS") == "1"
        assert await process.call("variable", "HEXPO_SAID") == "a b=c"
        assert await other.call("variable", "HEXPO_SAID") is None
        assert not {"torch", "tensordict", "transformers"} & set(await process.call("modules"))

    holds(promise)


def test_a_folder_of_its_own_goes_with_the_process(holds: Holds) -> None:
    """Nothing is left, however it ended."""

    async def promise(bench: Bench) -> None:
        if not bench.separate:
            return
        processes = await bench.cluster.start([spec("a"), spec("b")])
        folders = [Path(await process.call("folder")) for process in processes]
        assert len(set(folders)) == 2
        assert all(folder.is_dir() for folder in folders)
        bench.kill(processes[0])
        await processes[1].stop()
        await bench.cluster.close()
        assert not any(folder.exists() for folder in folders)

    holds(promise)


def test_held_ports_are_distinct(holds: Holds) -> None:
    """O2: 64 of one process and 64 of another, all held at the same time."""

    async def promise(bench: Bench) -> None:
        one, two = await bench.cluster.start([spec("a"), spec("b")])
        ports = [*await one.call("hold", 64), *await two.call("hold", 64)]
        assert len(set(ports)) == 128
        assert 0 not in ports

    holds(promise)
