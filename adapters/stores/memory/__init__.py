"""A row store in this process's memory: a block is an ordinary tensor.

There is no setting, so no `Config`.
"""

from hexpo.adapters.stores.memory.store import MemoryRowStore, build

__all__ = ["MemoryRowStore", "build"]
