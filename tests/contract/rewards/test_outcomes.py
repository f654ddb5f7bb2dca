"""One outcome a row, a score or a typed failure."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.rewards import bench
from tests.contract.rewards.bench import GRADERS, MATHS, answered, graded, known, values

from hexpo.adapters.rewards import math, reasoning_gym
from hexpo.adapters.rewards.wire.process import GraderFile
from hexpo.adapters.rewards.wire.reward import PooledReward
from hexpo.adapters.rewards.wire.worker import load
from hexpo.application.ports.reward import RewardFunction
from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Scored,
)
from hexpo.entrypoints.testing.reward import CONTRACT, Check, answer

ADAPTERS = Path(math.__file__).parents[1]
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


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_reward_keeps_its_contract(check: Check) -> None:
    """K1, K6: as users test their own."""
    asyncio.run(check(known, [answer("7", truth="7"), answer("8", truth="7")]))


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
    code = f"import runpy; m = runpy.run_path({bench.__file__!r}); m['print_maths']()"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen == [expected, expected]
    assert child.stdout.strip() == str(expected)


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


def test_a_grader_that_cannot_be_loaded_blames_no_sample(tmp_path: Path) -> None:
    """K1: RewardUnavailable, with the file's own error, instead of an outcome."""
    file = tmp_path / "broken.py"
    file.write_text("raise ImportError('no such library')")
    grader = GraderFile(name="rewards/broken", file=file, bound_seconds=1.0)
    with pytest.raises(RewardUnavailable, match=r"rewards/broken can't be loaded.*no such library"):
        graded(PooledReward(grader, workers=2), [answered("a")])


def test_the_file_loader_refuses_what_is_no_python_file(tmp_path: Path) -> None:
    """M3: a wrong path says so."""
    with pytest.raises(ImportError, match="no Python file"):
        load(str(tmp_path / "grader.txt"), {})
