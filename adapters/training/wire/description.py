"""The description that makes an engine's save complete: written last, read first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.training.backend import Progress
from hexpo.domain.errors import CheckpointError

_STATE = "engine.json"
_LAYOUT = 1


def describe(
    folder: Path, progress: Progress, *, base: str, sizes: Mapping[str, int], ranks: int
) -> None:
    """Write the description. Args: base: digest of what is not trained (the frozen base of
    adapters). sizes: bytes of each file. ranks: how many wrote a part."""
    state = {
        "layout": _LAYOUT,
        "progress": attrs.asdict(progress),
        "base": base,
        "ranks": ranks,
        "bytes": dict(sizes),
    }
    (folder / _STATE).write_text(json.dumps(state, indent=2))


def progress_of(folder: Path, *, base: str) -> Progress:
    """What was counted. Raises CheckpointError: a part is missing, cut off or of another base
    model."""
    state = _state(folder)
    if state["base"] != base:
        raise CheckpointError(
            f"{folder} was trained on another base model: load the one that the run began with"
        )
    for name, size in state["bytes"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise CheckpointError(f"{file} is missing or cut off: take an older save")
    return Progress(**state["progress"])


def ranks_of(folder: Path) -> int:
    """How many ranks wrote a part. Raises CheckpointError: the description is damaged."""
    return int(_state(folder).get("ranks", 1))


def _state(folder: Path) -> dict[str, Any]:
    path = folder / _STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or damaged: take an older save") from error
    if state.get("layout") != _LAYOUT:
        raise CheckpointError(f"{path} has layout {state.get('layout')}, this reads {_LAYOUT}")
    return state
