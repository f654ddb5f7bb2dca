"""Rows and batches in memory-mapped files: they pickle to their names, whatever their size.

Files are written once and then read by any number of processes of one machine. `build` gives a row
store that removes its own; a batch's folder is removed by whoever wrote it, after its last reader.
"""

from hexpo.adapters.stores.mapped.files import open_mapped, write_mapped
from hexpo.adapters.stores.mapped.store import Config, MappedRowStore, build

__all__ = ["Config", "MappedRowStore", "build", "open_mapped", "write_mapped"]
