"""Run folders: made once, readable later, honest about how a run ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure import living

CONFIG = "config.yaml"
"""The resolved configuration."""
STATE = "state.json"
"""How the run stands."""
LOG = "run.log"
"""What the command says while it works."""
METRICS = "metrics.jsonl"
"""What tracker `jsonl` writes."""
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoint store."""
_OF_STEPS = frozenset({"reward/mean", "loss/fit"})
"""Metrics by which a line of a training step is known."""
MODEL = "model"
"""The last step's weights as other programs load them."""


class State(Enum):
    """How a run stands."""

    RUNNING = "running"
    """Its process lives."""
    FINISHED = "finished"
    """It reached its last step."""
    INTERRUPTED = "interrupted"
    """It was asked to stop, and saved."""
    FAILED = "failed"
    """It ended with an error."""
    DEAD = "dead"
    """It says running, but its process is gone."""


@attrs.frozen(kw_only=True)
class Summary:
    """One line of `hexpo runs`."""

    name: str
    folder: Path
    state: State
    step: int | None
    steps: int | None
    reward: float | None
    """Mean reward of the last step."""
    changed: float
    """Seconds since the epoch."""
    error: str = ""


def create(parent: Path, name: str) -> Path:
    """A new folder `parent/name`, or `name-2`, `name-3`, ... where that is taken.

    Raises ConfigurationError: the folder cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = parent / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:  # another run has it, perhaps since a moment ago
                number += 1
            else:
                return folder
    except OSError as error:
        raise ConfigurationError(
            f"cannot make a run folder in {parent}: {error}; set run.folder to a folder that can"
            " be written"
        ) from error


def discard_unused(folder: Path) -> None:
    """Remove a run's folder if nothing was trained, measured or logged in it; else leave it."""
    with contextlib.suppress(OSError):
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        if sizes.keys() <= {CONFIG, STATE, LOG} and not sizes.get(LOG):
            shutil.rmtree(folder)


def discard_empty(folder: Path) -> None:
    """Remove a folder in which nothing lies."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def find(run: str | Path, *, parent: Path = Path("runs")) -> Path:
    """The folder of a run, by its path or by its name below `parent`.

    Raises ConfigurationError: there is no such run; names those that there are.
    """
    for folder in (Path(run), parent / run):
        if (folder / CONFIG).is_file():
            return folder
    known = ", ".join(summary.name for summary in listing(parent)) or "none"
    raise ConfigurationError(
        f"there is no run {str(run)!r} (no {CONFIG} in it); runs in {parent}: {known}"
    )


def require_free(folder: Path) -> None:
    """Raises ConfigurationError: another process of this machine trains in the folder."""
    record = _read(folder)
    is_running = record.get("state") == State.RUNNING.value and living.lives(record) is True
    if is_running and record.get("pid") != os.getpid():
        raise ConfigurationError(
            f"{folder} is being trained by process {record.get('pid')}: two would overwrite each"
            " other's metrics and checkpoints; wait for its end, or start a new run"
        )


def mark(folder: Path, state: State, *, error: str = "", steps: int | None = None) -> None:
    """Write a run's state, whole or not at all."""
    record: dict[str, Any] = {"state": state.value, **living.present(), "time": time.time()}
    before = _read(folder)
    record["steps"] = steps if steps is not None else before.get("steps")
    if error:
        record["error"] = error
    temporary = folder / f".{STATE}.{os.getpid()}"
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(folder / STATE)


def listing(parent: Path) -> list[Summary]:
    """All runs below a folder, newest first."""
    folders = [path.parent for path in parent.glob(f"*/{CONFIG}")]
    return sorted((summary(folder) for folder in folders), key=lambda s: -s.changed)


def summary(folder: Path) -> Summary:
    """How one run stands."""
    record = _read(folder)
    last = _last_metrics(folder / METRICS)
    states = {state.value: state for state in State}
    state = states.get(str(record.get("state")), State.DEAD)
    if state is State.RUNNING and living.lives(record) is False:
        state = State.DEAD
    return Summary(
        name=folder.name,
        folder=folder,
        state=state,
        step=_whole(last.get("step")),
        steps=_whole(record.get("steps")),
        reward=_number(last.get("reward/mean")),
        changed=float(record.get("time", 0.0)),
        error=str(record.get("error", "")),
    )


def _read(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _last_metrics(path: Path) -> dict[str, Any]:
    """The last training step's numbers; lines of evaluations and half lines are passed over."""
    for line in _lines_from_the_end(path):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and not _OF_STEPS.isdisjoint(row):
            return row
    return {}


def _lines_from_the_end(path: Path, *, window: int = 1 << 18) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window))
            tail = file.read().decode("utf-8", errors="replace")
    except OSError:
        return
    yield from reversed(tail.splitlines())


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def replace(new: Path, old: Path) -> None:
    """Put a finished folder in the place of an older one."""
    if old.exists():
        shutil.rmtree(old)
    new.rename(old)
