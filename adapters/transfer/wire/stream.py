"""A stream of parts becomes one of whole tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from hexpo.application.ports.transfer import Weight
from hexpo.domain.errors import EngineFailed


def whole(stream: Iterable[Weight]) -> Iterator[tuple[str, Tensor]]:
    """Names and whole, contiguous tensors, in the stream's order; holds one tensor at most.

    Raises: EngineFailed: the parts of a tensor have a gap, overlap, or end early; by name.
    """
    parts: list[Weight] = []
    for weight in stream:
        if parts and weight.name != parts[0].name:
            raise _incomplete(parts)
        if weight.start != _rows(parts):
            raise EngineFailed(
                f"weight {weight.name}: a part starts at row {weight.start} where row"
                f" {_rows(parts)} should follow; one rank sends a tensor's parts, in their order"
            )
        parts.append(weight)
        if not weight.shape or _rows(parts) >= weight.shape[0]:
            yield weight.name, _joined(parts)
            parts = []
    if parts:
        raise _incomplete(parts)


def _rows(parts: list[Weight]) -> int:
    return sum(part.tensor.shape[0] for part in parts)


def _joined(parts: list[Weight]) -> Tensor:
    tensors = [part.tensor.detach() for part in parts]
    tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    if tuple(tensor.shape) != tuple(parts[0].shape):
        raise EngineFailed(
            f"weight {parts[0].name}: its parts make {tuple(tensor.shape)}, not"
            f" {tuple(parts[0].shape)}"
        )
    return tensor.contiguous()


def _incomplete(parts: list[Weight]) -> EngineFailed:
    return EngineFailed(
        f"weight {parts[0].name}: {_rows(parts)} of its {parts[0].shape[0]} rows were sent"
    )
