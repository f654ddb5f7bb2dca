"""kill -9 of a rank or of a replica in each phase of a step: whatever it was asked for, or nothing.

The processes are real, on this machine; their services do nothing but wait, so a phase is exact.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from hexpo.adapters.cluster import local
from hexpo.adapters.rollout.wire import RemoteRollout
from hexpo.adapters.training.host.calls import Ranks
from hexpo.application.ports.cluster import Process, ProcessSpec
from hexpo.application.ports.rollout import RolloutCapabilities
from hexpo.domain.errors import EngineFailed

ENTRIES = Path(__file__).parents[1] / "data" / "cluster"
BOUND = 10.0
"""Seconds within which a death is known."""
RANK_PHASES = {
    "generate, pause": "",
    "train": "accumulate",
    "step": "finish",
    "load": "send",
    "save": "save",
}
"""What all ranks are asked for meanwhile; empty: nothing."""
REPLICA_PHASES: Mapping[str, Callable[[RemoteRollout], Awaitable[Any]] | None] = {
    "generate": lambda replica: replica.generate("request"),  # type: ignore[arg-type]
    "pause": lambda replica: replica.pause("keep"),  # type: ignore[arg-type]
    "load": lambda replica: replica.load_weights("update"),  # type: ignore[arg-type]
    "resume": lambda replica: replica.resume(),
    "train, save": None,
}
"""Texts are enough: they go to a service that only waits."""


def run(
    folder: Path, count: int, play: Callable[[list[Process]], Coroutine[Any, Any, None]]
) -> None:
    """With so many waiting processes. Fails if a task's error was never looked at."""
    unheard: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))
        config = local.Config(oversubscribe=True, close_seconds=1, force_seconds=1)
        cluster = local.build(config, folder=folder)
        specs = [
            ProcessSpec(
                name=f"process-{n}",
                entry="cluster_entries:waiter",
                environment={"PYTHONPATH": str(ENTRIES)},
            )
            for n in range(count)
        ]
        try:
            await play(list(await cluster.start(specs)))
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    gc.collect()
    assert not unheard


async def all_wait(processes: list[Process]) -> None:
    """Each has got its call."""
    async with asyncio.timeout(BOUND):
        for process in processes:
            while not await process.call("waiting"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A record that is kept would keep its error, and what was never looked at."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("phase", RANK_PHASES)
def test_a_rank_that_is_killed_in_any_phase_is_named_and_the_others_end(
    phase: str, tmp_path: Path
) -> None:
    """O3, O5: within the bound; the other rank, which waits for it, is stopped."""

    async def play(processes: list[Process]) -> None:
        ranks = Ranks(processes, grace_seconds=0.2)
        method = RANK_PHASES[phase]
        asked = [asyncio.ensure_future(ranks.all(method))] if method else []
        if asked:
            await all_wait(processes)
        os.kill(processes[1].pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND):
            await processes[1].death()
            for call in (*asked, ranks.all("accumulate")):
                with pytest.raises(EngineFailed, match=r"process-1.*SIGKILL"):
                    await call
            if asked:
                assert (await processes[0].death()).expected
            await ranks.close()
            assert (await processes[0].death()).expected

    run(tmp_path, 2, play)


@pytest.mark.parametrize("phase", REPLICA_PHASES)
def test_a_replica_that_is_killed_in_any_phase_fails_its_calls_with_the_cause(
    phase: str, tmp_path: Path
) -> None:
    """O3, F5: also the next call of one that died while nobody asked it; closing it is safe."""

    async def play(processes: list[Process]) -> None:
        able = RolloutCapabilities(pause_modes=frozenset())
        replica = RemoteRollout(processes[0], capabilities=able, version=0)
        ask = REPLICA_PHASES[phase]
        asked = [asyncio.ensure_future(ask(replica))] if ask is not None else []
        if asked:
            await all_wait(processes)
        os.kill(processes[0].pid, signal.SIGKILL)
        async with asyncio.timeout(BOUND):
            for call in (*asked, replica.resume()):
                with pytest.raises(EngineFailed, match=r"process-0.*SIGKILL"):
                    await call
            assert not (await processes[0].death()).expected
            await replica.close()
            await replica.close()

    run(tmp_path, 1, play)
