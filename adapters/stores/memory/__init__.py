"""A row store in this process's memory: a block is an ordinary tensor.

There is no setting, so no `Config`.
"""

from __future__ import annotations

from hexpo.adapters.stores.memory.store import MemoryRowStore
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import SCHEMA, Schema

__all__ = ["MemoryRowStore", "build"]


def build(*, schema: Schema = SCHEMA) -> RowStore:
    """An empty store of rows with these declared columns."""
    return MemoryRowStore(schema)
