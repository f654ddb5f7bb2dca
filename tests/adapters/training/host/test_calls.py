"""Calls to all ranks: the first failure is the one shown, and nobody waits for the dead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from hexpo.adapters.training.host.calls import Ranks
from hexpo.application.ports.cluster import Death
from hexpo.domain.errors import CheckpointError, EngineFailed, WrongBatch


class Scripted:
    """A process whose answers are given."""

    def __init__(self, name: str, answer: Callable[[], Awaitable[Any]]) -> None:
        self.name, self.pid, self._answer = name, 1, answer
        self.stopped = False
        self._death: asyncio.Future[Death] = asyncio.get_running_loop().create_future()

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await self._answer()

    async def death(self) -> Death:
        return await asyncio.shield(self._death)

    def die(self, cause: str) -> None:
        self._death.set_result(Death(name=self.name, cause=cause, expected=False))

    async def stop(self) -> None:
        self.stopped = True
        if not self._death.done():
            self._death.set_result(Death(name=self.name, cause="stopped", expected=True))


def gives(value: Any) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        return value

    return answer


def raises(error: Exception, *, after: float = 0.0) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        await asyncio.sleep(after)
        raise error

    return answer


async def hangs() -> Any:
    await asyncio.sleep(3600)


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 20))


def ranks_of(*answers: Callable[[], Awaitable[Any]]) -> tuple[Ranks, list[Scripted]]:
    processes = [Scripted(f"rank-{n}", answer) for n, answer in enumerate(answers)]
    return Ranks(processes, grace_seconds=0.05), processes


def test_all_answers_come_in_the_order_of_the_ranks() -> None:
    """N1: merging is done in one order."""

    async def play() -> None:
        ranks, _ = ranks_of(gives("a"), gives("b"), gives("c"))
        assert await ranks.all("work") == ["a", "b", "c"]
        assert await ranks.first("work") == "a"
        await ranks.close()

    run(play)


def test_a_refusal_that_all_ranks_know_of_leaves_them_running() -> None:
    """O5: the refusal itself comes out, and the next call works."""

    async def play() -> None:
        ranks, processes = ranks_of(gives(None), raises(WrongBatch("row 7 is not here")))
        with pytest.raises(WrongBatch, match="row 7"):
            await ranks.all("work")
        assert not any(process.stopped for process in processes)
        ranks.require_alive()
        await ranks.close()

    run(play)


@pytest.mark.parametrize("error", [WrongBatch("odd"), ValueError("broken loss")])
def test_a_failure_that_others_wait_for_stops_all_of_them(error: Exception) -> None:
    """O3: within the grace; its cause is kept, and told again to whoever calls later."""

    async def play() -> None:
        ranks, processes = ranks_of(hangs, raises(error))
        with pytest.raises(EngineFailed, match=str(error)) as caught:
            await ranks.all("work")
        assert caught.value.__cause__ is error
        assert all(process.stopped for process in processes)
        with pytest.raises(EngineFailed, match=str(error)):
            await ranks.all("work")
        await ranks.close()

    run(play)


@pytest.mark.parametrize("other", [gives({"part": 9}), hangs])
def test_a_full_disk_of_one_rank_keeps_its_type(other: Callable[[], Awaitable[Any]]) -> None:
    """H3: also where the other ranks write for longer than the grace."""
    full = CheckpointError("the disk of /runs is full")

    async def play() -> None:
        ranks, _ = ranks_of(other, raises(full))
        with pytest.raises(CheckpointError, match="full"):
            await ranks.all("save")
        await ranks.close()

    run(play)


def test_a_broken_connection_is_never_shown_as_the_cause() -> None:
    """O5: it is what the other ranks say of the one that failed."""

    async def play() -> None:
        lost = RuntimeError("[gloo] Connection closed by peer")
        ranks, _ = ranks_of(raises(lost), raises(ValueError("no memory"), after=0.01))
        with pytest.raises(EngineFailed, match="no memory"):
            await ranks.all("work")
        await ranks.close()

    run(play)


def test_the_death_of_a_rank_is_the_cause_of_what_the_others_say() -> None:
    """O3, O5: also when it dies between two calls."""

    async def play() -> None:
        lost = RuntimeError("[gloo] Connection closed by peer")
        ranks, processes = ranks_of(raises(lost), hangs)
        processes[1].die("killed by SIGKILL")
        with pytest.raises(EngineFailed, match="rank-1 died: killed by SIGKILL"):
            await ranks.all("work")
        idle, others = ranks_of(gives(1), gives(2))
        others[0].die("ended with exit code 3")
        await asyncio.sleep(0.01)
        with pytest.raises(EngineFailed, match="exit code 3"):
            await idle.all("work")
        await ranks.close()
        await idle.close()

    run(play)


def test_a_cancelled_call_waits_until_the_ranks_have_answered() -> None:
    """R: they stop together or not at all."""

    async def play() -> None:
        finished: list[int] = []

        async def slow() -> None:
            await asyncio.sleep(0.05)
            finished.append(1)

        ranks, _ = ranks_of(slow, slow)
        call = asyncio.create_task(ranks.all("work"))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert finished == [1, 1]
        await ranks.close()

    run(play)
