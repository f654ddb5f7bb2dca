"""What a start promises on any cluster: all of it, or nothing and the reason."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.cluster.bench import CPUS, Bench, Holds, require_free, spec

from hexpo.application.ports.cluster import Resources
from hexpo.domain.errors import EngineFailed, NotEnough, WrongValue


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
