"""What every rank is told about a call: all rows in the ranks' order, and where each one's begin.

It is pickled once, whatever the number of ranks. Rows travel by id; their tokens lie in the store.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Collection, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.balance import partition
from hexpo.domain.batch import SCHEMA, Schema, Sequences

_ALWAYS = frozenset({"id", "length", "group", "prompt_length"})


@attrs.frozen(eq=False)
class Order:
    """Rows, sorted by rank, and what to do with them."""

    rows: Sequences
    offsets: tuple[int, ...]
    """Rank r has the rows offsets[r] to offsets[r + 1]."""
    what: Any = None
    """An objective, column names or an estimator."""

    def of(self, rank: int) -> Sequences:
        """A rank's rows; none is legal."""
        return self.rows.select(slice(self.offsets[rank], self.offsets[rank + 1]))


def shared(
    rows: Sequences, ranks: int, columns: Collection[str], what: Any, *, keep_groups: bool = False
) -> bytes:
    """An order, packed: rows over ranks so that all have about the same number of tokens.

    Args: columns: of the sequences table, those that ranks read beside the usual ones.
        keep_groups: never separate a group (pair losses).
    """
    unit = rows["group"] if keep_groups else None
    parts = partition(_cost(rows), ranks, unit_S=unit)
    return laid_out(rows.select(torch.cat(parts)), [len(part) for part in parts], columns, what)


def together(rows: Sequences, ranks: int, columns: Collection[str], what: Any) -> bytes:
    """An order that gives all rows to the first rank, in their order."""
    return laid_out(rows, [len(rows)] + [0] * (ranks - 1), columns, what)


def _cost(rows: Sequences) -> Tensor:
    return rows.lengths.double().clamp(min=1.0)


def laid_out(rows: Sequences, sizes: Sequence[int], columns: Collection[str], what: Any) -> bytes:
    """An order, packed: the first sizes[0] rows to the first rank, the next to the second."""
    wanted = _ALWAYS | set(columns)
    kept = {name: column for name, column in rows.columns.items() if name in wanted}
    schema = None if rows.schema is SCHEMA else rows.schema
    offsets = tuple(itertools.accumulate(sizes, initial=0))
    return pickle.dumps((kept, schema, offsets, what), protocol=5)


def opened(packed: bytes) -> Order:
    """What `shared` and `together` packed."""
    columns, schema, offsets, what = pickle.loads(packed)
    declared: Schema = SCHEMA if schema is None else schema
    return Order(Sequences.of(columns, declared), offsets, what)
