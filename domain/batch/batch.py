"""A batch is two tables: a row per sequence, and a row per token, all sequences end to end.

No padding anywhere: the layout follows from the declared schema and the lengths, so that equal
lengths, one row and no row are ordinary. A sequence is known by its id, never by its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs
import torch
from tensordict import TensorDict
from torch import Tensor

from hexpo.domain.batch.schema import SCHEMA, Column, Schema
from hexpo.domain.errors import WrongBatch


def _check(table: TensorDict, declared: Mapping[str, Column], what: str) -> None:
    for name in table.keys():
        if name not in declared:
            raise WrongBatch(f"{what} column {name!r} is not in the schema; declare it first")
        column, tensor = declared[name], table[name]
        if tensor.dtype is not column.dtype:
            raise WrongBatch(f"{what} column {name!r} is {tensor.dtype}, declared {column.dtype}")
        trailing = tuple(tensor.shape[1:])
        fits = len(trailing) == len(column.trailing) and all(
            want is None or want == have
            for want, have in zip(column.trailing, trailing, strict=True)
        )
        if not fits:
            raise WrongBatch(
                f"{what} column {name!r} has trailing axes {trailing}, declared {column.trailing}"
            )


@attrs.frozen(eq=False)
class Sequences:
    """The driver's table: a row a trajectory. It is small; tokens lie in the row store."""

    table: TensorDict
    schema: Schema = SCHEMA

    def __attrs_post_init__(self) -> None:
        for name in ("id", "length"):
            if name not in self.table.keys():
                raise WrongBatch(f"the sequences table has no column {name!r}")
        _check(self.table, self.schema.sequences, "sequences")

    @staticmethod
    def of(columns: Mapping[str, Tensor], schema: Schema = SCHEMA) -> Sequences:
        """A table from its columns, each (S, ...). Raises WrongBatch where they do not fit."""
        rows = {tensor.shape[0] for tensor in columns.values()}
        if len(rows) > 1:
            raise WrongBatch(f"sequences columns disagree about the number of rows: {sorted(rows)}")
        return Sequences(TensorDict(dict(columns), [rows.pop() if rows else 0]), schema)

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.table.keys():
            have = ", ".join(sorted(self.table.keys()))
            raise WrongBatch(f"no sequences column {name!r}; there are: {have}")
        return self.table[name]

    def __contains__(self, name: str) -> bool:
        return name in self.table.keys()

    @property
    def ids(self) -> Tensor:
        """(S,) int64 names of the rows."""
        return self.table["id"]

    @property
    def lengths(self) -> Tensor:
        """(S,) int64 tokens of each row."""
        return self.table["length"]

    def select(self, index: Tensor | slice | Sequence[int]) -> Sequences:
        """Rows by place (int64 index, bool mask or slice), in the order given."""
        return Sequences(self.table[_places(index)], self.schema)

    def with_columns(self, **columns: Tensor) -> Sequences:
        """The same rows and some more (or newer) columns, each (S, ...)."""
        for name, tensor in columns.items():
            if tensor.shape[0] != len(self):
                raise WrongBatch(f"column {name!r} has {tensor.shape[0]} rows, not {len(self)}")
        return Sequences(TensorDict({**self.table, **columns}, [len(self)]), self.schema)

    @staticmethod
    def cat(parts: Sequence[Sequences]) -> Sequences:
        """Rows of all parts, in order. Raises WrongBatch where their columns differ."""
        _require_same_columns([set(part.table.keys()) for part in parts], "sequences")
        return Sequences(_cat([part.table for part in parts]), parts[0].schema)


def _places(index: Tensor | slice | Sequence[int]) -> Tensor | slice:
    is_ready = isinstance(index, Tensor | slice)
    return index if is_ready else torch.tensor(index, dtype=torch.int64)  # type: ignore[return-value]


def _require_same_columns(names: Sequence[set[str]], what: str) -> None:
    if not names:
        raise WrongBatch(f"nothing to concatenate: no {what} table was given")
    if differing := set().union(*names) - set.intersection(*names):
        raise WrongBatch(f"{what} tables differ in columns: {', '.join(sorted(differing))}")


def _cat(tables: Sequence[TensorDict]) -> TensorDict:
    return TensorDict(
        {name: torch.cat([table[name] for table in tables]) for name in tables[0].keys()},
        [sum(int(table.shape[0]) for table in tables)],
    )


@attrs.frozen(eq=False)
class Batch:
    """Sequences and their tokens."""

    sequences: Sequences
    tokens: TensorDict
    """Columns (T, ...): the rows' tokens end to end, in the order of `sequences`."""

    def __attrs_post_init__(self) -> None:
        _check(self.tokens, self.sequences.schema.tokens, "tokens")
        want, have = int(self.sequences.lengths.sum()), int(self.tokens.shape[0])
        if want != have:
            raise WrongBatch(f"the lengths add up to {want} tokens, the tokens table has {have}")

    @staticmethod
    def of(sequences: Sequences, tokens: Mapping[str, Tensor]) -> Batch:
        """A batch from its columns. Raises WrongBatch where they do not fit."""
        rows = {tensor.shape[0] for tensor in tokens.values()}
        if len(rows) > 1:
            raise WrongBatch(f"token columns disagree about the number of tokens: {sorted(rows)}")
        return Batch(sequences, TensorDict(dict(tokens), [rows.pop() if rows else 0]))

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

    def column(self, name: str) -> Tensor:
        """(T, ...): a token column, or a sequences column spread over its rows' tokens."""
        if name in self.tokens.keys():
            return self.tokens[name]
        if name in self.sequences:
            return torch.repeat_interleave(self.sequences[name], self.sequences.lengths, dim=0)
        raise WrongBatch(f"no column {name!r} in either table")

    def select(self, index: Tensor | slice | Sequence[int]) -> Batch:
        """Rows by place, in the order given; their tokens follow."""
        chosen = self.sequences.select(index)
        if isinstance(index, slice) and (index.step is None or index.step == 1):
            first, last, _ = index.indices(len(self))
            offsets = self.offsets
            return Batch(chosen, self.tokens[int(offsets[first]) : int(offsets[max(first, last)])])
        places = torch.arange(len(self))[_places(index)]
        lengths, starts = chosen.lengths, self.offsets[:-1][places]
        ends = lengths.cumsum(0)
        within = torch.arange(int(lengths.sum())) - torch.repeat_interleave(ends - lengths, lengths)
        return Batch(chosen, self.tokens[torch.repeat_interleave(starts, lengths) + within])

    def split(self, sizes: Sequence[int]) -> list[Batch]:
        """Consecutive parts of so many rows each. Raises WrongBatch if they do not add up."""
        if sum(sizes) != len(self) or any(size < 0 for size in sizes):
            raise WrongBatch(f"cannot split {len(self)} rows into {list(sizes)}")
        ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
        return [self.select(slice(a, b)) for a, b in itertools.pairwise(ends)]

    @staticmethod
    def cat(parts: Sequence[Batch]) -> Batch:
        """All parts end to end. Raises WrongBatch where their columns differ."""
        _require_same_columns([set(part.tokens.keys()) for part in parts], "tokens")
        sequences = Sequences.cat([part.sequences for part in parts])
        return Batch(sequences, _cat([part.tokens for part in parts]))

    def with_tokens(self, **columns: Tensor) -> Batch:
        """The same rows and some more token columns, each (T, ...)."""
        return Batch.of(self.sequences, {**self.tokens, **columns})
