"""A run that is killed or stopped at any moment goes on, and ends as if nothing had been."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure import runs

STEPS = 20
CLOCKED = ("time/", "busy/", "rollout/paus", "bias/trained", "bias/dropped_s")
"""Metrics that the clock makes: no two runs share them."""
CHANGES = {
    "run": {"steps": STEPS},
    "training": {"options": {"schedule": "cosine", "warmup_steps": 2}},
    "evaluation": {"every": 5},
    "reward": {"options": {"function": "slow.py:reward"}},
}
SLOW = """
import time
from pathlib import Path

def reward(prompt, answer, truth):
    time.sleep(float(Path(__file__).with_name("pace").read_text()))
    return sum(letter in "aeiou" for letter in answer)
"""
STEADY, QUICK = "0.04", "0.001"
"""Seconds of a score. Eight scores are a step: at a steady pace it takes a third of a second, so
that a signal meets it and the run cannot be over before it was interrupted."""


def trained(folder: Path) -> int:
    """Steps in a run's metrics."""
    return runs.summary(folder).step or 0


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line, without what a clock measured."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(CLOCKED)}
        for line in lines
    ]


def graders_of(pid: int) -> list[str]:
    """Grader processes of a parent, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"worker.py") for word in words) and str(pid).encode() in words:
            found.append(path.parent.name)
    return found


def require_none_left(pid: int) -> None:
    """O3: grader processes notice within a second that their parent is gone."""
    deadline = time.monotonic() + 20
    while left := graders_of(pid):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def pause(command: Any, folder: Path, *, steps: int, seconds: float) -> None:
    """Let a command train some further steps, and then a moment more."""
    command.until((folder / runs.STATE).is_file)
    before = trained(folder)
    command.until(lambda: trained(folder) >= min(before + steps, STEPS - 1))
    time.sleep(seconds)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_killed_at_random_moments_ends_bit_for_bit_as_one_that_was_not(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """H1, H3: five kills, one after the other, a save at each step; weights and numbers."""
    config = written(changes=changes(tmp_path))
    straight = hexpo("train", config, "run.name=straight")
    folder, chance = tmp_path / "runs" / "tiny", random.Random(5)
    command = hexpo("train", config)
    for turn in range(5):
        pause(command, folder, steps=chance.randrange(3), seconds=chance.random() / 4)
        command.send(signal.SIGKILL)
        if command.wait() == 0 and turn > 2:  # a busy machine let the signal wait
            break
        assert command.wait() == -signal.SIGKILL
        require_none_left(command.pid)
        assert runs.summary(folder).state is runs.State.DEAD
        command = hexpo("train", "--resume", folder)
    pace(tmp_path, QUICK)
    assert command.wait() == 0, command.err
    assert straight.wait() == 0, straight.err
    require_equal(folder, tmp_path / "runs" / "straight")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_stopped_by_ctrl_c_at_random_moments_saves_says_so_and_goes_on(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """F7, H1, O3: exit code 130, no traceback, no process left; once pressed twice."""
    config = written(changes=changes(tmp_path))
    straight = hexpo("train", config, "run.name=straight", "checkpoint.every=0")
    folder, chance = tmp_path / "runs" / "tiny", random.Random(7)
    command = hexpo("train", config, "checkpoint.every=0")
    for turn in range(4):
        pause(command, folder, steps=chance.randrange(3), seconds=chance.random() / 4)
        command.send(signal.SIGINT)
        if turn == 2:
            time.sleep(chance.random() / 10)
            command.send(signal.SIGINT)
        if command.wait() == 0 and turn > 2:  # a busy machine let the signal wait
            break
        assert command.wait() == 130, command.out + command.err
        assert "Traceback" not in command.err
        assert "go on with: hexpo train --resume" in command.out or "interrupted" in command.err
        require_none_left(command.pid)
        assert runs.summary(folder).state is runs.State.INTERRUPTED
        command = hexpo("train", "--resume", folder)
    pace(tmp_path, QUICK)
    assert command.wait() == 0, command.err
    assert straight.wait() == 0, straight.err
    require_equal(folder, tmp_path / "runs" / "straight")


def pace(folder: Path, seconds: str) -> None:
    """How long a score takes from now on."""
    fresh = folder / "pace.new"
    fresh.write_text(seconds)
    fresh.replace(folder / "pace")


def changes(folder: Path) -> dict[str, Any]:
    """Held-out prompts are those of training: only that they are asked matters here."""
    (folder / "slow.py").write_text(SLOW)
    pace(folder, STEADY)
    rows = {"kind": "jsonl", "options": {"paths": [str(folder / "rows.jsonl")], "limit": 2}}
    return {**CHANGES, "data": {"evaluation": rows}}


def require_equal(folder: Path, straight: Path) -> None:
    """Weights, optimizer state and metrics of two finished runs."""
    assert metrics(folder) == metrics(straight)
    last = Path("checkpoints", f"step-{STEPS:08}", "engine")
    for name in ("weights.safetensors", "moments.safetensors"):
        assert (folder / last / name).read_bytes() == (straight / last / name).read_bytes(), name
    assert runs.summary(folder).state is runs.State.FINISHED
