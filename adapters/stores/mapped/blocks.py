"""A block: some rows' columns in one file, written once, that any process of the node maps.

Layout: 8 bytes that say how long the header is, the header (JSON: rows, columns and where they
begin), then ids, lengths and columns, each on a boundary of 64 bytes.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import torch
from torch import Tensor

_BOUNDARY = 64
_SIZE = 8


@attrs.frozen(eq=False)
class Block:
    """Rows and their columns as they lie in a file: to be read, never written."""

    ids: list[int]
    lengths: list[int]
    columns: Mapping[str, Tensor]
    """(T, ...) each, the rows end to end."""


def write_block(path: Path, ids: Tensor, lengths: Tensor, columns: Mapping[str, Tensor]) -> None:
    """Write a file; it is there whole or not at all. A tensor is copied once, into the file."""
    tensors = {"id": ids, "length": lengths, **columns}
    described: list[tuple[str, str, list[int], int]] = []
    end = 0
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append((name, dtype, list(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // _BOUNDARY) * _BOUNDARY
    header = json.dumps(described).encode()
    begin = _begin(len(header))
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb", buffering=0) as file:
        _write(file, len(header).to_bytes(_SIZE, "little") + header)
        for (_, _, _, offset), tensor in zip(described, tensors.values(), strict=True):
            file.seek(begin + offset)
            _write(file, _bytes_of(tensor))
        file.truncate(begin + end)
    unfinished.replace(path)


def read_block(path: Path) -> Block:
    """Map a file. Raises FileNotFoundError: it is gone."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants it writable
    length = int.from_bytes(memory[:_SIZE], "little")
    found = {}
    for name, dtype, shape, offset in json.loads(memory[_SIZE : _SIZE + length]):
        found[name] = _mapped(memory, getattr(torch, dtype), shape, _begin(length) + offset)
    return Block(found.pop("id").tolist(), found.pop("length").tolist(), found)


def _begin(header: int) -> int:
    return -(-(_SIZE + header) // _BOUNDARY) * _BOUNDARY


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


def _write(file: BinaryIO, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _mapped(memory: mmap.mmap, dtype: torch.dtype, shape: list[int], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
