"""Token columns by row id, as views of the blocks that were put in."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import SCHEMA, Batch, Column, Schema
from hexpo.domain.batch.tables import require_declared, table_of
from hexpo.domain.errors import WrongBatch


def build(*, schema: Schema = SCHEMA) -> RowStore:
    """An empty store of rows with these declared columns."""
    return MemoryRowStore(schema)


class MemoryRowStore:
    """Implements the RowStore port; may be used from any thread.

    A row is a view of the block that it came in, so that putting copies nothing and a block's
    memory is freed with its last row. `get` copies once: whoever asks may write into the answer.
    """

    def __init__(self, schema: Schema = SCHEMA) -> None:
        self._declared = schema.tokens
        self._lengths: dict[int, int] = {}
        self._columns: dict[str, dict[int, Tensor]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lengths)

    def put(self, batch: Batch) -> None:
        """Take a batch's tokens, under the ids of its rows."""
        ids, lengths = batch.sequences.ids.tolist(), batch.sequences.lengths.tolist()
        require_declared(batch.tokens, self._declared, "tokens")
        with self._lock:
            _refuse(_repeated(ids), "stand twice in one batch")
            _refuse([row for row in ids if row in self._lengths], "are here already")
            self._lengths.update(zip(ids, lengths, strict=True))
            self._write(ids, lengths, batch.columns)

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order."""
        with self._lock:
            rows: list[int] = ids.tolist()
            lengths = self._lengths_of(rows)
            parts = {name: self._rows_of(name, rows) for name in columns}
        found = {
            name: torch.cat(tensors) if tensors else _no_rows(self._declared[name])
            for name, tensors in parts.items()
        }
        return table_of(found, sum(lengths), "tokens")

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are here; `ids` in the tokens' order."""
        with self._lock:
            rows: list[int] = ids.tolist()
            lengths = self._lengths_of(rows)
            _refuse(_repeated(rows), "are extended twice in one call")
            require_declared(table_of(columns, sum(lengths), "tokens"), self._declared, "tokens")
            for name in columns:
                written = self._columns.get(name, {})
                _refuse([row for row in rows if row in written], f"have {name!r} already")
            self._write(rows, lengths, columns)

    def drop(self, ids: Tensor) -> None:
        """Free rows."""
        with self._lock:
            rows: list[int] = ids.tolist()
            self._lengths_of(rows)
            for row in rows:
                self._lengths.pop(row, None)
                for written in self._columns.values():
                    written.pop(row, None)

    def _write(self, ids: list[int], lengths: list[int], columns: Mapping[str, Tensor]) -> None:
        for name, column in columns.items():
            rows = torch.split(column.detach(), lengths) if ids else ()
            self._columns.setdefault(name, {}).update(zip(ids, rows, strict=True))

    def _lengths_of(self, rows: list[int]) -> list[int]:
        _refuse([row for row in rows if row not in self._lengths], "are not here; drop frees rows")
        return [self._lengths[row] for row in rows]

    def _rows_of(self, name: str, rows: list[int]) -> list[Tensor]:
        if name not in self._declared:
            raise WrongBatch(f"tokens column {name!r} is not in the schema; declare it first")
        written = self._columns.get(name, {})
        _refuse([row for row in rows if row not in written], f"have no column {name!r} yet")
        return [written[row] for row in rows]


def _repeated(rows: list[int]) -> list[int]:
    seen: set[int] = set()
    return [row for row in rows if row in seen or seen.add(row)]  # type: ignore[func-returns-value]


def _refuse(rows: list[int], why: str) -> None:
    if rows:
        more = "" if len(rows) <= 5 else f" and {len(rows) - 5} more"
        raise WrongBatch(f"rows {', '.join(map(str, rows[:5]))}{more} {why}")


def _no_rows(column: Column) -> Tensor:
    return torch.zeros((0, *(size or 0 for size in column.trailing)), dtype=column.dtype)
