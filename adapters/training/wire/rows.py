"""Rows as an engine runs them: their token columns, from the store or spread from the driver's."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from hexpo.adapters.training.backend import Part
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Sequences

_INPUTS = frozenset({"token", "position"})


def part_of(store: RowStore, rows: Sequences, names: Collection[str]) -> Part:
    """Rows with the token columns `names` and those that every model reads."""
    return Part(rows, columns_of(store, rows, frozenset(names) | _INPUTS))


def columns_of(store: RowStore, rows: Sequences, names: Collection[str]) -> dict[str, Tensor]:
    """Token columns by name: spread over a row's tokens where the driver made them (`advantage` of
    an outcome estimator), else from the store. Raises WrongBatch: a row or a column is missing."""
    declared = rows.schema.tokens
    spread = {
        name: torch.repeat_interleave(rows[name], rows.lengths, dim=0)
        for name in names
        if name in rows and name in declared and rows[name].dtype is declared[name].dtype
    }
    stored = store.get(rows.ids, set(names) - spread.keys())
    return {**spread, **{str(name): stored[name] for name in stored.keys()}}
