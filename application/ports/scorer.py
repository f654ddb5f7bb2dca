"""Port: whoever fills columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from hexpo.domain.batch import Sequences
from hexpo.domain.metrics import Metrics


class Scorer(Protocol):
    """Fills token columns of rows that lie in the row store.

    Promises: every asked column is written for every row, in the rows' own token order, whatever
    the packing. Nothing is learnt.
    Raises: Unsupported: a column that this scorer does not make. EngineFailed: the engine died.
    Cancellation: safe between micro-batches; columns are written whole or not at all.
    """

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write `columns` (`old`, `reference`, `value`, `entropy`, ...) for the rows."""
        ...
