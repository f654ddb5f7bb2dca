"""Tensors as arrays of bytes, so that a pickle copies their memory once."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Plain = tuple[str, tuple[int, ...], Any]
"""A tensor: its dtype's name, its axes, its bytes."""


def packed(value: Any) -> bytes:
    """A message. Its tensors were made plain."""
    return pickle.dumps(value, protocol=5)


def plain(columns: Mapping[str, Tensor]) -> dict[str, Plain]:
    """Columns by name."""
    return {name: _plain(column) for name, column in columns.items()}


def tensors(columns: Mapping[str, Plain]) -> dict[str, Tensor]:
    """What `plain` took apart; the memory is the receiver's."""
    return {name: _tensor(*column) for name, column in columns.items()}


def _plain(tensor: Tensor) -> Plain:
    flat = tensor.detach().cpu().contiguous().view(-1)
    name = str(tensor.dtype).removeprefix("torch.")
    return name, tuple(tensor.shape), flat.view(torch.uint8).numpy()


def _tensor(name: str, shape: tuple[int, ...], data: Any) -> Tensor:
    return torch.from_numpy(data).view(getattr(torch, name)).view(shape)
