"""A batch is two tables: a row per sequence, and a row per token, all sequences end to end.

No padding anywhere: the layout follows from the declared schema and the lengths, so that equal
lengths, one row and no row are ordinary. A sequence is known by its id, never by its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import attrs
import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch.schema import SCHEMA, Schema
from hexpo.domain.batch.tables import (
    column_of,
    columns_of,
    end_to_end,
    even_sizes,
    names_of,
    places_of,
    require_declared,
    rows_of,
    table_of,
)
from hexpo.domain.errors import WrongBatch


def _consecutive(index: Tensor | slice | Sequence[int]) -> TypeGuard[slice]:
    return isinstance(index, slice) and index.step in (None, 1)


@attrs.frozen(eq=False)
class Sequences:
    """The driver's table: a row a trajectory. It is small; tokens lie in the row store."""

    table: TensorDict
    schema: Schema = attrs.field(default=SCHEMA, repr=False)

    def __attrs_post_init__(self) -> None:
        for name in ("id", "length"):
            if name not in self:
                raise WrongBatch(f"the sequences table has no column {name!r}")
        require_declared(self.table, self.schema.sequences, "sequences")

    @staticmethod
    def of(columns: Mapping[str, Tensor], schema: Schema = SCHEMA) -> Sequences:
        """A table from its columns, each (S, ...). Raises WrongBatch where they do not fit."""
        return Sequences(table_of(columns, rows_of(columns), "sequences"), schema)

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self:
            have = ", ".join(sorted(names_of(self.table)))
            raise WrongBatch(f"no sequences column {name!r}; there are: {have}")
        return column_of(self.table, name)

    def __contains__(self, name: str) -> bool:
        return name in self.table.keys()

    @property
    def ids(self) -> Tensor:
        """(S,) int64 names of the rows."""
        return column_of(self.table, "id")

    @property
    def lengths(self) -> Tensor:
        """(S,) int64 tokens of each row."""
        return column_of(self.table, "length")

    @property
    def columns(self) -> dict[str, Tensor]:
        """All columns by name, each (S, ...)."""
        return columns_of(self.table)

    def select(self, index: Tensor | slice | Sequence[int]) -> Sequences:
        """Rows by place (int64 index, bool mask or slice), in the order given."""
        chosen = index if _consecutive(index) else places_of(index, len(self))
        return Sequences(self.table[chosen], self.schema)

    def split(self, sizes: Sequence[int]) -> list[Sequences]:
        """Consecutive parts of so many rows each. Raises WrongBatch if they do not add up."""
        return [self.select(part) for part in _slices(sizes, len(self))]

    def with_columns(self, **columns: Tensor) -> Sequences:
        """The same rows and some more (or newer) columns, each (S, ...)."""
        table = table_of({**self.columns, **columns}, len(self), "sequences")
        return Sequences(table, self.schema)

    def without(self, *names: str) -> Sequences:
        """The same rows without some columns, where they have them."""
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return Sequences(table_of(kept, len(self), "sequences"), self.schema)

    @staticmethod
    def cat(parts: Sequence[Sequences]) -> Sequences:
        """Rows of all parts, in order. Raises WrongBatch where their columns differ."""
        return Sequences(end_to_end([part.table for part in parts], "sequences"), parts[0].schema)


def _slices(sizes: Sequence[int], rows: int) -> list[slice]:
    if sum(sizes) != rows or any(size < 0 for size in sizes):
        raise WrongBatch(f"cannot split {rows} rows into {list(sizes)}")
    return [slice(a, b) for a, b in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


def _rows(column: Tensor, sizes: list[int], order: list[int]) -> Tensor:
    """The tokens of some rows, end to end. Copying row by row is far faster than by token index."""
    if not order:
        return column[:0]
    rows = torch.split(column, sizes)
    return torch.cat([rows[place] for place in order])


@attrs.frozen(eq=False)
class Batch:
    """Sequences and their tokens."""

    sequences: Sequences
    tokens: TensorDict
    """Columns (T, ...): the rows' tokens end to end, in the order of `sequences`."""

    def __attrs_post_init__(self) -> None:
        require_declared(self.tokens, self.sequences.schema.tokens, "tokens")
        want, have = int(self.sequences.lengths.sum()), int(self.tokens.shape[0])
        if want != have:
            raise WrongBatch(f"the lengths add up to {want} tokens, the tokens table has {have}")

    @staticmethod
    def of(sequences: Sequences, tokens: Mapping[str, Tensor]) -> Batch:
        """A batch from its columns. Raises WrongBatch where they do not fit."""
        return Batch(sequences, table_of(tokens, int(sequences.lengths.sum()), "tokens"))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def offsets(self) -> Tensor:
        """(S + 1,) int64: row s has the tokens offsets[s] to offsets[s + 1]."""
        lengths = self.sequences.lengths
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])

    @property
    def owner(self) -> Tensor:
        """(T,) int64: the place in `sequences` of each token's row."""
        return torch.repeat_interleave(self.sequences.lengths)

    @property
    def columns(self) -> dict[str, Tensor]:
        """All token columns by name, each (T, ...)."""
        return columns_of(self.tokens)

    def column(self, name: str) -> Tensor:
        """(T, ...): a token column, or a sequences column spread over its rows' tokens."""
        if name in self.tokens.keys():
            return column_of(self.tokens, name)
        if name in self.sequences:
            return torch.repeat_interleave(self.sequences[name], self.sequences.lengths, dim=0)
        raise WrongBatch(f"no column {name!r} in either table")

    def select(self, index: Tensor | slice | Sequence[int]) -> Batch:
        """Rows by place, in the order given; their tokens follow. A slice without a step gives
        views of this batch's tokens, anything else copies."""
        if _consecutive(index):
            offsets = self.offsets
            first, last, _ = index.indices(len(self))
            tokens = slice(int(offsets[first]), int(offsets[max(first, last)]))
            return Batch(self.sequences.select(index), self.tokens[tokens])
        places = places_of(index, len(self))
        sizes, order = self.sequences.lengths.tolist(), places.tolist()
        gathered = {name: _rows(column, sizes, order) for name, column in self.columns.items()}
        return Batch.of(self.sequences.select(places), gathered)

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Consecutive parts of so many rows each. Raises WrongBatch if they do not add up."""
        return [self.select(part) for part in _slices(sizes, len(self))]

    def chunk(self, parts: int) -> list[Batch]:
        """Consecutive parts whose numbers of rows differ by at most one; empty ones are legal."""
        return self.split(even_sizes(len(self), parts))

    @staticmethod
    def cat(parts: Sequence[Batch]) -> Batch:
        """All parts end to end. Raises WrongBatch where their columns differ."""
        tokens = end_to_end([part.tokens for part in parts], "tokens")
        return Batch(Sequences.cat([part.sequences for part in parts]), tokens)

    def with_tokens(self, **columns: Tensor) -> Batch:
        """The same rows and some more token columns, each (T, ...)."""
        return Batch.of(self.sequences, {**self.columns, **columns})
