"""Run folders: made once, and honest about how a run ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure import runs
from hexpo.infrastructure.runs import State


def made(parent: Path, name: str = "a") -> Path:
    """A run folder with a configuration."""
    folder = runs.create(parent, name)
    (folder / runs.CONFIG).write_text("{}\n")
    return folder


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    """Two runs never share a folder."""
    assert [made(tmp_path).name for _ in range(3)] == ["a", "a-2", "a-3"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """M3."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot make a run folder"):
        runs.create(tmp_path / "file", "a")


def test_a_run_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    """`--resume a` and `--resume runs/a`."""
    folder = made(tmp_path)
    assert runs.find("a", parent=tmp_path) == folder
    assert runs.find(folder, parent=tmp_path / "other") == folder
    with pytest.raises(ConfigurationError, match=r"no run 'b'.*: a$"):
        runs.find("b", parent=tmp_path)


def test_a_run_is_running_while_its_process_lives(tmp_path: Path) -> None:
    """A process that was killed wrote nothing: its run is dead, not running."""
    folder = made(tmp_path)
    runs.mark(folder, State.RUNNING, steps=9)
    assert runs.summary(folder).state is State.RUNNING
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    state = json.loads((folder / runs.STATE).read_text()) | {"pid": child.pid}
    (folder / runs.STATE).write_text(json.dumps(state))
    assert runs.summary(folder).state is State.DEAD
    assert child.pid != os.getpid()


def test_a_summary_shows_the_last_step_and_its_reward(tmp_path: Path) -> None:
    """Evaluation-only and half-written lines are passed over."""
    folder = made(tmp_path)
    runs.mark(folder, State.RUNNING, steps=9)
    lines = [
        {"step": 1, "reward/mean": 0.25},
        {"step": 2, "reward/mean": 0.5},
        {"step": 2, "evaluate/held-out/mean": 1},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 3, "rew'
    (folder / runs.METRICS).write_text(text)
    runs.mark(folder, State.FAILED, error="EngineFailed: it died")
    found = runs.summary(folder)
    assert (found.step, found.steps, found.reward) == (2, 9, 0.5)
    assert found.state is State.FAILED
    assert found.error == "EngineFailed: it died"


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    """Folders without a configuration are no runs."""
    for name in ("a", "b"):
        runs.mark(made(tmp_path, name), State.FINISHED)
    (tmp_path / "junk").mkdir()
    assert [found.name for found in runs.listing(tmp_path)] == ["b", "a"]
    assert runs.listing(tmp_path / "none") == []


def test_only_a_folder_in_which_nothing_was_done_is_discarded(tmp_path: Path) -> None:
    """A log that says something, a metric or a save keeps it."""
    for name, text in ((runs.LOG, "a warning"), (runs.METRICS, ""), (runs.CHECKPOINTS, "")):
        folder = runs.create(tmp_path, "run")
        runs.mark(folder, State.FAILED)
        (folder / name).write_text(text)
        runs.discard_unused(folder)
        assert folder.exists(), name
    folder = runs.create(tmp_path, "run")
    (folder / runs.CONFIG).write_text("")
    (folder / runs.LOG).write_text("")
    runs.discard_unused(folder)
    assert not folder.exists()
