"""How processes of any cluster end: killed, by themselves, asked to, by force."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from tests.contract.cluster.bench import CPUS, Bench, Holds, require_free, spec

from hexpo.domain.errors import EngineFailed


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
