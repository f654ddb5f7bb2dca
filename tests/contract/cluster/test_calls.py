"""What a process of any cluster promises while it lives: calls, what crosses, where it stands."""

from __future__ import annotations

import asyncio
import os

import pytest
import torch
from tests.contract.cluster.bench import Bench, Holds, spec

from hexpo.domain.errors import EngineFailed, WrongValue


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


def test_held_ports_are_distinct(holds: Holds) -> None:
    """O2: 64 of one process and 64 of another, all held at the same time."""

    async def promise(bench: Bench) -> None:
        one, two = await bench.cluster.start([spec("a"), spec("b")])
        ports = [*await one.call("hold", 64), *await two.call("hold", 64)]
        assert len(set(ports)) == 128
        assert 0 not in ports

    holds(promise)
