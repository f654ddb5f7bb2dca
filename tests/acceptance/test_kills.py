"""A run of several processes, of which any is killed at any moment, goes on and ends as if nothing
had been. `HEXPO_KILLS` asks for more kills than the usual one, and every further one for the next
kind of victim; `make test-engines` asks for ten."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure import runs

KILLS = int(os.environ.get("HEXPO_KILLS", "1"))
STEPS, BOUND = max(8, 5 * KILLS), 300.0
"""Enough steps that no run ends before its kill: each comes within four."""
VICTIMS = ("rank-1", "driver", "rollout-0")
"""In turn."""
CHILD = b"hexpo.adapters.cluster.local.child"
CHANGES = {
    "run": {"steps": STEPS},
    "training": {"ranks": 2, "options": {"schedule": "cosine", "warmup_steps": 2}},
    "rollout": {"replicas": 1},
    "cluster": {"options": {"oversubscribe": True}},
    "checkpoint": {"every": 1, "options": {"keep": 2}, "export": False},
    "reward": {"options": {"function": "slow.py:reward"}},
}
SLOW = """
import time

def reward(prompt, answer, truth):
    time.sleep(0.02)  # so that a step takes a fifth of a second, and kills meet it
    return sum(letter in "aeiou" for letter in answer)
"""
LEARNT = ("reward/", "train/")
"""Metrics that a kill may not change; others speak of processes and clocks."""


def processes_of(driver: int) -> Mapping[str, int]:
    """The numbers of a driver's processes, by the names of their logs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            log = (path / "fd" / "1").readlink()
        except OSError:
            continue
        if CHILD in words and words[words.index(CHILD) + 2] == str(driver).encode():
            found[log.stem] = int(path.name)
    return found


def trained(folder: Path) -> int:
    """Steps in a run's metrics."""
    return runs.summary(folder).step or 0


def learnt(folder: Path) -> list[dict[str, Any]]:
    """What each step's metrics say of rewards and training."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k.startswith(LEARNT)} for line in lines]


def weights(folder: Path) -> dict[str, bytes]:
    """Weights and optimizer state of the last save."""
    last = folder / "checkpoints" / f"step-{STEPS:08}" / "engine"
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def kill(command: Any, victim: str, folder: Path, chance: random.Random) -> None:
    """Kill one of a run's processes at a random moment; the driver says who it was."""
    goal = trained(folder) + chance.randrange(1, 3)
    command.until(lambda: trained(folder) >= goal, BOUND)
    time.sleep(chance.random() / 3)
    if victim == "driver":
        command.send(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        return
    os.kill(processes_of(command.pid)[victim], signal.SIGKILL)
    assert command.wait(60) > 0, command.err
    assert victim in command.err, command.err
    assert "SIGKILL" in command.err


def require_none_left(driver: int) -> None:
    """O3: within seconds."""
    deadline = time.monotonic() + 20
    while left := processes_of(driver):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_processes_are_killed_ends_bit_for_bit_as_one_that_was_not(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """H1, O3, R1: a rank, a replica and the driver, at random moments; each death is named, nothing
    outlives the run, and the resumed one ends with the same weights, moments and rewards."""
    (tmp_path / "slow.py").write_text(SLOW)
    config = written(changes=CHANGES)
    straight = hexpo("train", config, "run.name=straight")
    assert straight.wait(BOUND) == 0, straight.err
    folder, chance = tmp_path / "runs" / "tiny", random.Random(11)
    command = hexpo("train", config)
    command.until((folder / runs.STATE).is_file, BOUND)
    for turn in range(KILLS):
        kill(command, VICTIMS[turn % len(VICTIMS)], folder, chance)
        require_none_left(command.pid)
        command = hexpo("train", "--resume", folder)
    assert command.wait(BOUND) == 0, command.err
    require_none_left(command.pid)
    assert learnt(folder) == learnt(tmp_path / "runs" / "straight")
    wanted = weights(tmp_path / "runs" / "straight")
    assert wanted
    assert weights(folder) == wanted
