"""Token columns by row id, as views of the blocks that were put in."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from tensordict import TensorDict
from torch import Tensor

from hexpo.adapters.stores.wire import RowIndex
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import SCHEMA, Batch, Schema


def build(*, schema: Schema = SCHEMA) -> RowStore:
    """An empty store of rows with these declared columns."""
    return MemoryRowStore(schema)


class MemoryRowStore:
    """Implements the RowStore port; may be used from any thread.

    A row is a view of the block that it came in, so that putting copies nothing and a block's
    memory is freed with its last row. `get` copies once: whoever asks may write into the answer.
    """

    def __init__(self, schema: Schema = SCHEMA) -> None:
        self._index = RowIndex(schema)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._index)

    def put(self, batch: Batch) -> None:
        """Take a batch's tokens, under the ids of its rows."""
        with self._lock:
            self._index.require_new(batch)
            rows = batch.sequences
            self._index.add(rows.ids.tolist(), rows.lengths.tolist(), batch.columns)

    def get(self, ids: Tensor, columns: Collection[str]) -> TensorDict:
        """(T, ...) columns of the rows `ids`, end to end, in that order."""
        with self._lock:
            return self._index.get(ids, columns)

    def extend(self, ids: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Add (T, ...) columns to rows that are here; `ids` in the tokens' order."""
        with self._lock:
            lengths = self._index.require_unwritten(ids, columns)
            self._index.add(ids.tolist(), lengths, columns)

    def drop(self, ids: Tensor) -> None:
        """Free rows."""
        with self._lock:
            rows: list[int] = ids.tolist()
            self._index.lengths_of(rows)
            self._index.drop(rows)
