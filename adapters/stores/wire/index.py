"""Token columns by row id, as views of the tensors that they came in. Not for several threads."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import attrs
import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch import Batch, Column, Schema
from hexpo.domain.batch.tables import require_declared, table_of
from hexpo.domain.errors import WrongBatch


@attrs.frozen(eq=False)
class _Block:
    """Rows that came end to end. It lives as long as one of them has a column of it."""

    starts: Mapping[int, int]
    """Of each row its first token's place."""
    columns: Mapping[str, Tensor]


@attrs.frozen(eq=False)
class _Run:
    """Rows that are asked for in the order in which they lie."""

    block: _Block
    tokens: slice


class RowIndex:
    """Says what is here, and refuses what a row store's port refuses."""

    def __init__(self, schema: Schema) -> None:
        self._declared = schema.tokens
        self._lengths: dict[int, int] = {}
        self._columns: dict[str, dict[int, _Block]] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def __contains__(self, row: int) -> bool:
        return row in self._lengths

    def require_new(self, batch: Batch) -> None:
        """Raises WrongBatch: a row is here, stands twice, or has an undeclared column."""
        require_declared(batch.tokens, self._declared, "tokens")
        ids = batch.sequences.ids.tolist()
        _refuse(_repeated(ids), "stand twice in one batch")
        if not self._lengths.keys().isdisjoint(ids):
            _refuse([row for row in ids if row in self._lengths], "are here already")

    def require_unwritten(self, ids: Tensor, columns: Mapping[str, Tensor]) -> list[int]:
        """Lengths of the rows. Raises WrongBatch: they are not here, or have such a column."""
        rows: list[int] = ids.tolist()
        lengths = self.lengths_of(rows)
        _refuse(_repeated(rows), "are extended twice in one call")
        require_declared(table_of(columns, sum(lengths), "tokens"), self._declared, "tokens")
        for name in columns:
            written = self._columns.get(name, {})
            if not written.keys().isdisjoint(rows):
                _refuse([row for row in rows if row in written], f"have {name!r} already")
        return lengths

    def add(self, ids: list[int], lengths: list[int], columns: Mapping[str, Tensor]) -> None:
        """Rows, or further columns of them. Nothing is copied."""
        self._lengths.update(zip(ids, lengths, strict=True))
        block = _Block(
            dict(zip(ids, itertools.accumulate(lengths, initial=0), strict=False)),
            {name: column.detach() for name, column in columns.items()},
        )
        for name in columns:
            self._columns.setdefault(name, {}).update(dict.fromkeys(ids, block))

    def has(self, rows: list[int], columns: Collection[str]) -> bool:
        """Whether all columns of all rows are here."""
        written = [self._columns.get(name, {}) for name in columns]
        return all(row in self._lengths and all(row in each for each in written) for row in rows)

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """Copies: (T, ...) columns of the rows, end to end. Raises WrongBatch: one is missing."""
        rows: list[int] = ids.tolist()
        lengths = self.lengths_of(rows)
        found: dict[str, Tensor] = {}
        before: list[_Block] = []
        runs: list[_Run] = []
        for name in columns:
            blocks = self._blocks_of(name, rows)
            if blocks != before:  # columns that came together lie alike
                runs, before = list(_runs(rows, lengths, blocks)), blocks
            pieces = [run.block.columns[name][run.tokens] for run in runs]
            found[name] = _copied(pieces) if pieces else _no_rows(self._declared[name])
        return table_of(found, sum(lengths), "tokens")

    def drop(self, rows: list[int]) -> None:
        """Forget rows that are here."""
        for row in rows:
            self._lengths.pop(row, None)
            for written in self._columns.values():
                written.pop(row, None)

    def lengths_of(self, rows: list[int]) -> list[int]:
        """Tokens of each row. Raises WrongBatch: a row is not here."""
        try:
            return [self._lengths[row] for row in rows]
        except KeyError:
            missing = [row for row in rows if row not in self._lengths]
            _refuse(missing, "are not here; drop frees rows")
            raise

    def _blocks_of(self, name: str, rows: list[int]) -> list[_Block]:
        if name not in self._declared:
            raise WrongBatch(f"tokens column {name!r} is not in the schema; declare it first")
        written = self._columns.get(name, {})
        try:
            return [written[row] for row in rows]
        except KeyError:
            _refuse([row for row in rows if row not in written], f"have no column {name!r} yet")
            raise


def _runs(rows: list[int], lengths: list[int], blocks: list[_Block]) -> Iterator[_Run]:
    current: _Block | None = None
    first = last = 0
    for row, length, block in zip(rows, lengths, blocks, strict=True):
        start = block.starts[row]
        if block is current and start == last:
            last += length
            continue
        if current is not None:
            yield _Run(current, slice(first, last))
        current, first, last = block, start, start + length
    if current is not None:
        yield _Run(current, slice(first, last))


def _copied(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0].clone() if len(pieces) == 1 else torch.cat(list(pieces))


def _repeated(rows: list[int]) -> list[int]:
    if len(set(rows)) == len(rows):
        return []
    seen: set[int] = set()
    return [row for row in rows if row in seen or seen.add(row)]  # type: ignore[func-returns-value]


def _refuse(rows: list[int], why: str) -> None:
    if rows:
        more = "" if len(rows) <= 5 else f" and {len(rows) - 5} more"
        raise WrongBatch(f"rows {', '.join(map(str, rows[:5]))}{more} {why}")


def _no_rows(column: Column) -> Tensor:
    return torch.zeros((0, *(size or 0 for size in column.trailing)), dtype=column.dtype)
