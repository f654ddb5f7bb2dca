"""A block: some rows' columns in one file, written once, that any process of the node maps.

Layout: 8 bytes that say how long the header is, the header (JSON: rows, columns and where they
begin), then ids, lengths and columns, each on a boundary of 64 bytes.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import torch
from torch import Tensor

from hexpo.adapters.stores.mapped.mappings import Mappings
from hexpo.adapters.stores.mapped.spares import Spares

_BOUNDARY = 64
_SIZE = 8


@attrs.frozen(eq=False)
class Block:
    """Rows and their columns as they lie in a file: to be read, never written."""

    ids: list[int]
    lengths: list[int]
    columns: Mapping[str, Tensor]
    """(T, ...) each, the rows end to end."""


def write_block(
    path: Path,
    ids: Tensor,
    lengths: Tensor,
    columns: Mapping[str, Tensor],
    *,
    spares: Spares,
    mappings: Mappings,
) -> None:
    """Write a file; it is there whole or not at all. A tensor is copied once, into the file: a
    spare one, if there is one, which is faster than having the system clear new memory first."""
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
    pieces = [(0, memoryview(bytearray(len(header).to_bytes(_SIZE, "little") + header)))]
    for (_, _, _, offset), tensor in zip(described, tensors.values(), strict=True):
        pieces.append((begin + offset, _bytes_of(tensor)))
    spares.claim(begin + end, unfinished)
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        known = mappings.known(descriptor, begin + end)
        for offset, data in pieces:
            if known is not None:
                _copy(data, known, offset)
                continue
            file.seek(offset)
            _write(file, data)
        if file.seek(0, os.SEEK_END) < begin + end:  # never shorter: it may be mapped elsewhere
            file.truncate(begin + end)
    unfinished.replace(path)


def read_block(path: Path, mappings: Mappings) -> Block:
    """Map a file. Raises FileNotFoundError: it is gone."""
    with path.open("r+b", buffering=0) as file:  # torch wants the memory writable
        memory = mappings.of(file.fileno())
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


def _copy(data: memoryview, to: mmap.mmap, offset: int) -> None:
    if len(data):
        source = torch.frombuffer(data, dtype=torch.uint8)
        torch.frombuffer(to, dtype=torch.uint8, count=len(data), offset=offset).copy_(source)


def _write(file: BinaryIO, rest: memoryview) -> None:
    while rest:
        rest = rest[file.write(rest) :]


def _mapped(memory: mmap.mmap, dtype: torch.dtype, shape: list[int], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
