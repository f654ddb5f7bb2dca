"""A batch as bytes, for a wire or a file: a header in JSON, then the columns as they lie.

Nothing is ever executed on reading, and every size is checked before a tensor is made.
"""

from __future__ import annotations

import json
import struct
import zlib
from types import MappingProxyType
from typing import Any

import attrs
import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch.batch import Batch, Sequences
from hexpo.domain.batch.schema import SCHEMA, Schema, Table
from hexpo.domain.errors import WrongBatch

_MAGIC = b"hexpo.b1"
_SIZED = struct.Struct("<8sQ")  # magic, bytes of the header
_LEAD = struct.Struct("<8sQI")  # the same, and a checksum of everything else
_ALIGN = 64
_DTYPES = MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
        )
    }
)


@attrs.frozen
class _Entry:
    """Where one column lies."""

    table: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Bytes after the header."""

    @property
    def size(self) -> int:
        count = 1
        for axis in self.shape:
            count *= axis
        return count * _DTYPES[self.dtype].itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def to_bytes(batch: Batch) -> bytes:
    """Both tables, whole. The schema does not travel: the reader has it."""
    entries, blocks, start = [], [], 0
    for table, columns in (
        (Table.SEQUENCES, batch.sequences.columns),
        (Table.TOKENS, batch.columns),
    ):
        for name, column in columns.items():
            dtype = str(column.dtype).removeprefix("torch.")
            entry = _Entry(table.value, name, dtype, tuple(column.shape), start)
            entries.append(attrs.astuple(entry))
            blocks.append(_raw(column).ljust(_aligned(entry.size), b"\0"))
            start += len(blocks[-1])
    counts = {"rows": len(batch), "tokens": int(batch.tokens.shape[0]), "columns": entries}
    header = json.dumps(counts, separators=(",", ":")).encode()
    header = header.ljust(_aligned(_LEAD.size + len(header)) - _LEAD.size)
    body = b"".join([header, *blocks])
    return _LEAD.pack(_MAGIC, len(header), _checksum(len(header), body)) + body


def _checksum(header_size: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(_SIZED.pack(_MAGIC, header_size)))


def from_bytes(data: bytes, *, schema: Schema = SCHEMA) -> Batch:
    """The batch that `to_bytes` wrote; its tensors are its own and may be written.

    Raises: WrongBatch: not such bytes, damaged ones, or columns that the schema does not declare.
    """
    held = bytearray(data)
    if len(held) < _LEAD.size:
        raise WrongBatch(f"{len(held)} bytes are no batch: even its lead is longer")
    magic, header_size, checksum = _LEAD.unpack_from(held)
    body = memoryview(held)[_LEAD.size :]
    if magic != _MAGIC:
        raise WrongBatch(f"these bytes begin with {magic!r}; a batch begins with {_MAGIC!r}")
    if header_size > len(body) or _checksum(header_size, body) != checksum:
        raise WrongBatch("the bytes of this batch are damaged or cut; fetch or write them again")
    header: dict[str, Any] = json.loads(bytes(body[:header_size]))
    first = _LEAD.size + header_size
    tables: dict[str, dict[str, Tensor]] = {table.value: {} for table in Table}
    for entry in (_Entry(*fields) for fields in header["columns"]):
        tables[entry.table][entry.name] = _column(held, first, entry)
    sequences = TensorDict(tables[Table.SEQUENCES.value], [header["rows"]])
    tokens = TensorDict(tables[Table.TOKENS.value], [header["tokens"]])
    return Batch(Sequences(sequences, schema), tokens)


def _raw(column: Tensor) -> bytes:
    flat = column.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


def _column(held: bytearray, first: int, entry: _Entry) -> Tensor:
    dtype = _DTYPES[entry.dtype]
    if not entry.size:
        return torch.zeros(entry.shape, dtype=dtype)
    count = entry.size // dtype.itemsize
    flat = torch.frombuffer(held, dtype=dtype, count=count, offset=first + entry.start)
    return flat.reshape(entry.shape)
