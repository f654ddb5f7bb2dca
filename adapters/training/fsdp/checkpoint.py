"""What the engine writes to a folder and reads back, bit by bit (H1).

Each rank writes its own part: a rectangle of every tensor, and where it begins. So any number of
ranks, in any teams, can read what others wrote (H8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from hexpo.adapters.training.backend import Progress
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.adapters.training.fsdp.places import Piece, Place, extent, meeting, placed, whole, within
from hexpo.adapters.training.wire import describe, progress_of, ranks_of
from hexpo.application.disk import on_disk
from hexpo.domain.errors import CheckpointError, NonFinite

_STARTS = "starts"
"""Of a file's parts: where each begins in its whole tensor, in JSON."""


def write(folder: Path, masters: Masters, progress: Progress, *, base: str) -> None:
    """Write weights, optimizer state and progress; the description last.

    Args: base: digest of what is not trained (the frozen base of adapters).
    Raises: NonFinite: a weight is not finite; nothing is written (J3). CheckpointError: the disk
        is full.
    """
    with on_disk(folder):
        describe(folder, progress, base=base, sizes=write_part(folder, masters), ranks=1)


class Saved(Protocol):
    """What has weights and moments by name."""

    def weights(self) -> dict[str, Tensor]: ...
    def moments(self) -> dict[str, Tensor]: ...


@attrs.frozen(kw_only=True, eq=False)
class Copies:
    """Weights and moments in host memory, apart from those that are trained."""

    kept_weights: dict[str, Tensor]
    kept_moments: dict[str, Tensor]

    @staticmethod
    def of(saved: Saved) -> Copies:
        """As they are now."""
        return Copies(
            kept_weights={name: _copy(tensor) for name, tensor in saved.weights().items()},
            kept_moments={name: _copy(tensor) for name, tensor in saved.moments().items()},
        )

    def weights(self) -> dict[str, Tensor]:
        """By name."""
        return self.kept_weights

    def moments(self) -> dict[str, Tensor]:
        """By name."""
        return self.kept_moments


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def write_part(
    folder: Path,
    saved: Saved,
    *,
    rank: int = 0,
    ranks: int = 1,
    parts: Mapping[str, Piece] | None = None,
) -> dict[str, int]:
    """Write one rank's part; gives its files and their bytes.

    Args: parts: where each weight's part belongs; one that is not there is another rank's to
        write. None: all weights, whole.
    Raises: NonFinite: a weight is not finite; nothing is written (J3).
    """
    from safetensors.torch import save_file

    require_finite(saved)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for kind, tensors in (("weights", saved.weights()), ("moments", saved.moments())):
        path = folder / _file(kind, rank, ranks)
        own = {
            name: tensor.contiguous()
            for name, tensor in tensors.items()
            if parts is None or _weight_of(kind, name) in parts
        }
        save_file(own, path, metadata=_metadata(kind, own, parts))
        sizes[path.name] = path.stat().st_size
    return sizes


def require_finite(saved: Saved) -> None:
    """Raises NonFinite: a weight is not finite, so it must not be saved (J3)."""
    weights = saved.weights()
    if bad := [name for name, weight in weights.items() if not bool(weight.isfinite().all())]:
        raise NonFinite(f"{len(bad)} weights are not finite, such as {bad[0]}: not saved")


def _metadata(
    kind: str, tensors: Mapping[str, Tensor], parts: Mapping[str, Piece] | None
) -> dict[str, str] | None:
    if parts is None:
        return None
    starts = {
        name: [along.start for along in parts[_weight_of(kind, name)].place]
        for name, tensor in tensors.items()
        if tensor.dim()
    }
    return {_STARTS: json.dumps(starts)}


def _file(kind: str, rank: int, ranks: int) -> str:
    if ranks == 1:
        return f"{kind}.safetensors"
    return f"{kind}-{rank + 1:05d}-of-{ranks:05d}.safetensors"


def _weight_of(kind: str, name: str) -> str:
    """Whose weight's a tensor is: moments are named `exp_avg.<weight>`."""
    return name if kind == "weights" else name.partition(".")[2]


def read(folder: Path, masters: Masters, *, base: str) -> Progress:
    """Restore what `write` wrote. Raises CheckpointError: a part is missing, cut off or of another
    model; the engine is as before."""
    progress = progress_of(folder, base=base)
    read_part(folder, masters, {name: whole(one.shape) for name, one in masters.weights().items()})
    return progress


def read_part(folder: Path, masters: Masters, parts: Mapping[str, Piece]) -> None:
    """Restore weights and optimizer state: of each weight this part, from the parts of however
    many ranks wrote."""
    from safetensors import SafetensorError

    ranks = ranks_of(folder)
    try:
        weights = _read(folder, "weights", ranks, parts)
        moments = _read(folder, "moments", ranks, parts)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be read: take an older save") from error
    masters.restore(weights, moments)


def _read(folder: Path, kind: str, ranks: int, parts: Mapping[str, Piece]) -> dict[str, Tensor]:
    from safetensors import safe_open

    held: dict[str, list[tuple[Place, Any]]] = {}
    with ExitStack() as stack:
        for rank in range(ranks):
            path = folder / _file(kind, rank, ranks)
            file = stack.enter_context(safe_open(str(path), framework="pt"))
            starts = _starts(path, file.metadata(), ranks)
            for name in file.keys():
                shape = file.get_slice(name).get_shape()
                held.setdefault(name, []).append((placed(starts.get(name), shape), file))
        _require_same(kind, held, parts)
        return {
            name: _part(name, pieces, parts[_weight_of(kind, name)].place)
            for name, pieces in held.items()
        }


def _starts(path: Path, metadata: dict[str, str] | None, ranks: int) -> dict[str, list[int]]:
    if metadata and _STARTS in metadata:
        starts: dict[str, list[int]] = json.loads(metadata[_STARTS])
        return starts
    if ranks > 1:
        raise CheckpointError(f"{path} does not say where its parts belong: take an older save")
    return {}


def _require_same(
    kind: str, held: Mapping[str, list[tuple[Place, Any]]], parts: Mapping[str, Piece]
) -> None:
    """Raises CheckpointError: a weight or its shape is not this model's."""
    saved = {
        _weight_of(kind, name): extent([place for place, _ in pieces])
        for name, pieces in held.items()
        if pieces[0][0]
    }
    wanted = {name: part.shape for name, part in parts.items()} if saved else {}
    if saved != wanted:
        differing = sorted(dict(saved.items() ^ wanted.items()))
        raise CheckpointError(
            f"the checkpoint's {kind} are not this model's: {len(differing)} differ in name or"
            f" shape, such as {differing[0]}"
        )


def _part(name: str, pieces: list[tuple[Place, Any]], wanted: Place) -> Tensor:
    first, file = pieces[0]
    if not first or first == wanted:  # a step count: every rank has it
        tensor: Tensor = file.get_tensor(name)
        return tensor
    found = torch.zeros(*(along.stop - along.start for along in wanted))
    for place, file in pieces:
        both = meeting(place, wanted)
        if both is not None:
            found[within(both, wanted)] = file.get_slice(name)[within(both, place)]
    return found
