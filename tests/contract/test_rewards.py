"""What every reward promises, and what a pool of grader processes does about bad samples."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hexpo.adapters.rewards import math, python, reasoning_gym
from hexpo.adapters.rewards.wire.process import GraderFile
from hexpo.adapters.rewards.wire.reward import PooledReward
from hexpo.adapters.rewards.wire.worker import load
from hexpo.application.ports.reward import RewardFunction
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Message,
    Outcome,
    Prompt,
    Scored,
    StopReason,
    Trajectory,
)

GRADERS = Path(__file__).parents[1] / "data" / "rewards" / "graders.py"
ADAPTERS = Path(math.__file__).parents[1]


def answered(
    text: str, truth: Any = None, *, failure: Failed | None = None, **extra: Any
) -> Trajectory:
    """A trajectory of one prompt token and three sampled ones."""
    return Trajectory(
        id=0,
        group=0,
        prompt=Prompt(
            id="row", messages=(Message("user", "?"),), truth=truth, source="set", extra=extra
        ),
        tokens=torch.tensor([1, 2, 3, 4]),
        prompt_length=1,
        action=torch.tensor([False, True, True, True]),
        behaviour=torch.zeros(4),
        version=torch.zeros(4, dtype=torch.int64),
        stop=StopReason.STOP,
        text=text,
        failure=failure,
    )


def graded(reward: RewardFunction, *batches: Sequence[Trajectory]) -> list[Sequence[Outcome]]:
    """Outcomes of batches, one after the other; the reward is closed at the end."""

    async def run() -> list[Sequence[Outcome]]:
        try:
            return [await reward.grade(batch) for batch in batches]
        finally:
            await reward.close()

    return asyncio.run(run())


def known(**settings: Any) -> PooledReward:
    return python.build(python.Config(function=f"{GRADERS}:known", **settings))


def values(outcomes: Sequence[Outcome]) -> list[float | Cause]:
    return [row.value if isinstance(row, Scored) else row.cause for row in outcomes]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert left == []


ENTRY = {"question": "3 + 4 =", "answer": "7", "metadata": {}}
OF_GYM = {"task": "chain_sum", "options": {}, "entry": ENTRY}

SHIPPED: dict[str, tuple[Callable[[], RewardFunction], dict[str, Any], float | Cause]] = {
    "python": (known, {}, 0.0),
    "math": (lambda: math.build(math.Config()), {}, Cause.UNSUPPORTED),
    "reasoning_gym": (
        lambda: reasoning_gym.build(reasoning_gym.Config()),
        OF_GYM,
        Cause.UNSUPPORTED,
    ),
}
"""How each is built, what its rows hold, and what it says of a row that lacks it."""


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_grader_gives_one_outcome_a_row_in_order_with_its_defaults(name: str) -> None:
    """K6, K1: defaults run; a failed rollout stays ungraded; a foreign row is unsupported."""
    build, extra, of_foreign = SHIPPED[name]
    lost = Failed(cause=Cause.RAISED, message="the rollout's")
    rows = [
        answered("7", "7", **extra),
        answered("8", "7", **extra),
        answered("", "7", failure=lost, **extra),
        answered("7", "7", **extra),
        answered("7"),
    ]
    [outcomes, empty] = graded(build(), rows, [])
    assert values(outcomes) == [1.0, 0.0, Cause.RAISED, 1.0, of_foreign]
    assert outcomes[2] is lost
    assert list(empty) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_close_twice_and_before_any_use_is_safe_and_ends_service(name: str) -> None:
    """The port: close is safe to call twice; afterwards the grader is gone."""
    reward = SHIPPED[name][0]()

    async def run() -> None:
        await reward.close()
        await reward.close()
        await reward.grade([answered("7", "7")])

    with pytest.raises(RewardUnavailable, match="closed"):
        asyncio.run(run())


@pytest.mark.parametrize("folder", ["python", "math", "reasoning_gym"])
def test_no_grader_process_loads_torch_or_hexpo(folder: str) -> None:
    """O19: a respawn that loaded torch would cost seconds."""
    options = {
        "python": {"function": f"{GRADERS}:known", "arguments": {}, "truth_as": "x", "chat": True},
        "math": {},
        "reasoning_gym": {"extract": "whole", "pattern": None, "partial_credit": True},
    }[folder]
    code = (
        f"import runpy, sys; w = runpy.run_path({str(ADAPTERS / 'wire' / 'worker.py')!r}); "
        f"w['load']({str(ADAPTERS / folder / 'grader.py')!r}, {options!r}); "
        "print(sorted({'torch', 'hexpo', 'tensordict'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


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


NO_TEXT: Any = 5
MATHS = [answered("1/2", "0.5"), answered("1/3", "0.5"), answered(NO_TEXT, "0.5")]


@pytest.mark.slow
def test_maths_grades_alike_in_main_thread_worker_thread_and_child_process() -> None:
    """O19: "1/2" is 0.5, "1/3" is not; an internal error is a typed failure, in all three."""
    expected = [1.0, 0.0, Cause.RAISED]
    seen: list[list[float | Cause]] = []

    def grade() -> None:
        [outcomes] = graded(math.build(math.Config(workers=1)), MATHS)
        seen.append(values(outcomes))

    grade()
    thread = threading.Thread(target=grade)
    thread.start()
    thread.join()
    code = f"import runpy; m = runpy.run_path({__file__!r}); m['print_maths']()"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen == [expected, expected]
    assert child.stdout.strip() == str(expected)


def print_maths() -> None:
    """What the child process of the test above does."""
    [outcomes] = graded(math.build(math.Config(workers=1)), MATHS)
    sys.stdout.write(str(values(outcomes)))


@pytest.mark.parametrize(
    ("todo", "cause", "says"),
    [
        ("raise", Cause.RAISED, "ZeroDivisionError: by hand.*graders.py, line"),
        ("exit", Cause.RAISED, "SystemExit: 3"),
        ("die", Cause.RAISED, "process died.*exit code 3"),
        ("nan", Cause.BAD_RESULT, "no finite number: nan"),
        ("text", Cause.BAD_RESULT, "no finite number: '1.0'"),
        ("none", Cause.BAD_RESULT, "no finite number: None"),
        ("unscored", Cause.BAD_RESULT, "lacks 'score', it has accuracy"),
    ],
)
def test_what_a_grader_does_wrong_is_a_typed_failure_of_that_row(
    todo: str, cause: Cause, says: str
) -> None:
    """K1, K3: its neighbours keep their scores."""
    good = answered("a", "a")
    [outcomes] = graded(known(), [good, answered("a", "a", todo=todo), good])
    assert values(outcomes) == [1.0, cause, 1.0]
    failed = outcomes[1]
    assert isinstance(failed, Failed)
    assert re.search(says, failed.message)


def test_a_row_that_cannot_travel_fails_alone() -> None:
    """K3: a truth that pickle refuses is the row's failure."""
    [outcomes] = graded(known(), [answered("a", lambda: None), answered("a", "a")])
    assert values(outcomes) == [Cause.UNSUPPORTED, 1.0]


def test_parts_of_a_score_are_components_if_numbers_and_extra_if_not() -> None:
    """K4: rows of one batch may have different parts."""
    [outcomes] = graded(known(), [answered("ab", "ab"), answered("a", "b", todo="bonus")])
    first, second = outcomes
    assert isinstance(first, Scored)
    assert isinstance(second, Scored)
    assert dict(first.components) == {"length": 2.0}
    assert dict(second.components) == {"length": 1.0, "bonus": 2.0}
    assert dict(first.extra) == {"note": "compared"}


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
        f"import runpy; m = runpy.run_path({__file__!r}); "
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


def test_a_grader_that_cannot_be_loaded_blames_no_sample(tmp_path: Path) -> None:
    """K1: RewardUnavailable, with the file's own error, instead of an outcome."""
    file = tmp_path / "broken.py"
    file.write_text("raise ImportError('no such library')")
    grader = GraderFile(name="rewards/broken", file=file, bound_seconds=1.0)
    with pytest.raises(RewardUnavailable, match=r"rewards/broken can't be loaded.*no such library"):
        graded(PooledReward(grader, workers=2), [answered("a")])


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


def test_the_file_loader_refuses_what_is_no_python_file(tmp_path: Path) -> None:
    """M3: a wrong path says so."""
    with pytest.raises(ImportError, match="no Python file"):
        load(str(tmp_path / "grader.txt"), {})
