"""What the engine writes to a folder and reads back, bit by bit (H1).

Each rank writes its own part: consecutive rows of the first axis of every tensor, in the order of
the ranks. So any number of ranks can read what another number wrote (H8).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from hexpo.adapters.training.backend import Progress
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.adapters.training.wire import describe, progress_of, ranks_of
from hexpo.domain.errors import CheckpointError, NonFinite


def write(folder: Path, masters: Masters, progress: Progress, *, base: str) -> None:
    """Write weights, optimizer state and progress; the description last.

    Args: base: digest of what is not trained (the frozen base of adapters).
    Raises: NonFinite: a weight is not finite; nothing is written (J3).
    """
    describe(folder, progress, base=base, sizes=write_part(folder, masters), ranks=1)


class Saved(Protocol):
    """What has weights and moments by name."""

    def weights(self) -> dict[str, Tensor]: ...
    def moments(self) -> dict[str, Tensor]: ...


def write_part(folder: Path, masters: Saved, *, rank: int = 0, ranks: int = 1) -> dict[str, int]:
    """Write one rank's part; gives its files and their bytes.

    Raises: NonFinite: a weight is not finite; nothing is written (J3).
    """
    from safetensors.torch import save_file

    weights, moments = masters.weights(), masters.moments()
    if bad := [name for name, weight in weights.items() if not bool(weight.isfinite().all())]:
        raise NonFinite(f"{len(bad)} weights are not finite, such as {bad[0]}: not saved")
    folder.mkdir(parents=True, exist_ok=True)
    files = {_file("weights", rank, ranks): weights, _file("moments", rank, ranks): moments}
    for file, tensors in files.items():
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    return {file: (folder / file).stat().st_size for file in files}


def _file(kind: str, rank: int, ranks: int) -> str:
    if ranks == 1:
        return f"{kind}.safetensors"
    return f"{kind}-{rank + 1:05d}-of-{ranks:05d}.safetensors"


def read(folder: Path, masters: Masters, *, base: str) -> Progress:
    """Restore what `write` wrote. Raises CheckpointError: a part is missing, cut off or of another
    model; the engine is as before."""
    progress = progress_of(folder, base=base)
    read_part(folder, masters, {})
    return progress


def read_part(folder: Path, masters: Masters, rows: Mapping[str, slice]) -> None:
    """Restore weights and optimizer state, of each tensor the given rows; all by default."""
    from safetensors import SafetensorError

    ranks = ranks_of(folder)
    try:
        weights = _read(folder, "weights", ranks, rows)
        moments = _read(folder, "moments", ranks, rows)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be read: take an older save") from error
    masters.restore(weights, moments)


def _read(folder: Path, kind: str, ranks: int, rows: Mapping[str, slice]) -> dict[str, Tensor]:
    """Tensors by name: the rows that are wanted, from the parts of however many ranks wrote."""
    import torch
    from safetensors import safe_open

    pieces: dict[str, list[Tensor]] = {}
    passed: dict[str, int] = {}
    for rank in range(ranks):
        with safe_open(str(folder / _file(kind, rank, ranks)), framework="pt") as file:
            for name in file.keys():
                part = file.get_slice(name)
                if not part.get_shape():  # a step count: every rank has it
                    pieces.setdefault(name, [file.get_tensor(name)])
                    continue
                length, first = part.get_shape()[0], passed.get(name, 0)
                passed[name] = first + length
                wanted = rows.get(name if kind == "weights" else name.partition(".")[2])
                start, stop = (0, length) if wanted is None else _within(wanted, first, length)
                pieces.setdefault(name, []).append(part[start:stop])
    return {
        name: found[0] if len(found) == 1 else torch.cat([*found]) for name, found in pieces.items()
    }


def _within(wanted: slice, first: int, length: int) -> tuple[int, int]:
    start = min(max(wanted.start - first, 0), length)
    return start, max(start, min(wanted.stop - first, length))
