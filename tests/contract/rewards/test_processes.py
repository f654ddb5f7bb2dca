"""Graders that hang, die or are cancelled; who waits for them, and for how long."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from tests.contract.rewards import bench
from tests.contract.rewards.bench import answered, graded, known, values

from hexpo.application.ports.reward import RewardFunction
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import (
    Cause,
    Outcome,
    Scored,
    Trajectory,
)


def test_a_hanging_sample_fails_alone_in_every_pass_and_its_slot_comes_back() -> None:
    """O19, K2, K3: 20 samples, one hangs; 2 workers, bound 1 s; off the main thread; 3 passes."""
    batch = [
        answered("a", "a", todo="hang") if i == 7 else answered("a", "ab"[i % 2]) for i in range(20)
    ]
    expected = [Cause.TIMED_OUT if i == 7 else float(i % 2 == 0) for i in range(20)]
    seconds: list[float] = []
    seen: list[list[float | Cause]] = []

    async def passes() -> None:
        reward = known(bound_seconds=1.0)
        for rows in (batch, batch, batch, [answered("a", "a")] * 20):
            start = time.monotonic()
            seen.append(values(await reward.grade(rows)))
            seconds.append(time.monotonic() - start)
        await reward.close()

    thread = threading.Thread(target=lambda: asyncio.run(passes()))
    thread.start()
    thread.join()
    assert seen == [expected, expected, expected, [1.0] * 20]
    assert max(seconds[:3]) < 10
    assert seconds[3] < 5


def test_a_process_of_a_grader_knows_no_torch() -> None:
    """O19: also with a user's function loaded."""
    [outcomes] = graded(known(workers=1), [answered("", todo="torch")])
    assert values(outcomes) == [0.0]


def test_two_loops_in_two_threads_share_one_reward() -> None:
    """The port: from any thread's event loop."""
    reward = known()
    seen: dict[str, list[float | Cause]] = {}

    def grade(answer: str) -> None:
        batch = [answered(answer, "a")] * 30
        seen[answer] = values(asyncio.run(_once(reward, batch)))

    threads = [threading.Thread(target=grade, args=(answer,)) for answer in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(reward.close())
    assert seen == {"a": [1.0] * 30, "b": [0.0] * 30}


async def _once(reward: RewardFunction, batch: Sequence[Trajectory]) -> Sequence[Outcome]:
    return await reward.grade(batch)


def test_cancelling_drops_what_waits_and_frees_the_slot_within_the_bound() -> None:
    """The port: cancellation leaves no slot behind."""

    async def run() -> float:
        reward = known(bound_seconds=1.0, workers=1)
        task = asyncio.create_task(_once(reward, [answered("a", todo="hang")] * 50))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        assert values(await reward.grade([answered("a", "a")])) == [1.0]
        await reward.close()
        return time.monotonic() - start

    assert asyncio.run(run()) < 5


def test_closing_while_a_sample_hangs_ends_it_and_tells_the_caller() -> None:
    """The port: close ends worker processes, whatever they do."""

    async def run() -> float:
        reward = known(bound_seconds=60.0, workers=1)
        task = asyncio.create_task(_once(reward, [answered("a", todo="hang")] * 3))
        await asyncio.sleep(1.0)
        start = time.monotonic()
        await reward.close()
        with pytest.raises(RewardUnavailable, match="closed"):
            await task
        return time.monotonic() - start

    assert asyncio.run(run()) < 5


def test_a_process_killed_while_idle_costs_no_sample(tmp_path: Path) -> None:
    """K3: the machine's out-of-memory killer between two batches is nobody's failure."""

    async def run() -> list[float | Cause]:
        reward = known(workers=1)
        [first] = await reward.grade([answered("", todo="pid")])
        assert isinstance(first, Scored)
        victim = psutil.Process(int(first.components["pid"]))
        victim.kill()
        psutil.wait_procs([victim], timeout=0.5)
        outcomes = values(await reward.grade([answered("a", "a")]))
        await reward.close()
        return outcomes

    assert asyncio.run(run()) == [1.0]


def test_what_a_hanging_grader_started_ends_with_it(tmp_path: Path) -> None:
    """K2: a grader's own subprocess is killed too."""
    file = tmp_path / "pids"
    [outcomes] = graded(
        known(bound_seconds=1.0, workers=1), [answered("a", todo="child", file=str(file))]
    )
    assert values(outcomes) == [Cause.TIMED_OUT]
    assert _all_gone(file, seconds=5)


def test_no_grader_process_survives_a_killed_parent(tmp_path: Path) -> None:
    """O3, K2: kill -9 of the parent while a sample runs."""
    file = tmp_path / "pids"
    code = (
        f"import runpy; m = runpy.run_path({bench.__file__!r}); "
        f"m['graded'](m['known'](bound_seconds=600.0, workers=1), "
        f"[m['answered']('a', todo='child', file={str(file)!r})])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text().count(" ")) and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    assert _all_gone(file, seconds=10)


def _all_gone(file: Path, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    alive = [int(pid) for pid in file.read_text().split()]
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [pid for pid in alive if psutil.pid_exists(pid) and not _zombie(pid)]
    return not alive


def _zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_grading_64_cheap_samples_is_fast() -> None:
    """Grading must not show in a step; most of the allowed time is slack for a busy machine."""

    async def run() -> float:
        reward = known()
        batch = [answered("a", "a")] * 64
        await reward.grade(batch)
        best = float("inf")
        for _ in range(10):
            start = time.monotonic()
            await reward.grade(batch)
            best = min(best, time.monotonic() - start)
        await reward.close()
        return best

    assert asyncio.run(run()) < 0.2
