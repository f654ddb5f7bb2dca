"""What the engine writes to a folder and reads back, bit by bit (H1)."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
from torch import Tensor

from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.domain.errors import CheckpointError, NonFinite

_WEIGHTS, _MOMENTS, _STATE = "weights.safetensors", "moments.safetensors", "engine.json"
_LAYOUT = 1


@attrs.frozen(kw_only=True)
class Progress:
    """What the engine counts; the schedule and the dropout's noise follow from it."""

    version: int = 0
    """Publications."""
    applied: int = 0
    """Optimizer steps that changed the weights."""
    skipped: int = 0
    """Steps without a change, in all."""
    skipped_in_row: int = 0
    """Non-finite steps since the last applied one."""


def write(folder: Path, masters: Masters, progress: Progress, *, base: str) -> None:
    """Write weights, optimizer state and progress; the description last.

    Args: base: digest of what is not trained (the frozen base of adapters).
    Raises: NonFinite: a weight is not finite; nothing is written (J3).
    """
    from safetensors.torch import save_file

    weights, moments = masters.weights(), masters.moments()
    if bad := [name for name, weight in weights.items() if not bool(weight.isfinite().all())]:
        raise NonFinite(f"{len(bad)} weights are not finite, such as {bad[0]}: not saved")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_contiguous(weights), folder / _WEIGHTS)
    save_file(_contiguous(moments), folder / _MOMENTS)
    state = {
        "layout": _LAYOUT,
        "progress": attrs.asdict(progress),
        "base": base,
        "bytes": {name: (folder / name).stat().st_size for name in (_WEIGHTS, _MOMENTS)},
    }
    (folder / _STATE).write_text(json.dumps(state, indent=2))


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def read(folder: Path, masters: Masters, *, base: str) -> Progress:
    """Restore what `write` wrote. Raises CheckpointError: a part is missing, cut off or of another
    model; the engine is as before."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / _STATE
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or damaged: take an older save") from error
    if state.get("layout") != _LAYOUT:
        raise CheckpointError(f"{path} has layout {state.get('layout')}, this reads {_LAYOUT}")
    if state["base"] != base:
        raise CheckpointError(
            f"{folder} was trained on another base model: load the one that the run began with"
        )
    for name, size in state["bytes"].items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise CheckpointError(f"{file} is missing or cut off: take an older save")
    try:
        weights, moments = load_file(folder / _WEIGHTS), load_file(folder / _MOMENTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be read: take an older save") from error
    masters.restore(weights, moments)
    return Progress(**state["progress"])
