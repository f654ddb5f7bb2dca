"""A batch in memory-mapped files: it pickles to its name, whatever its size, and so do slices.

Files are written once and then read by any number of processes of one machine. Whoever wrote a
folder removes it after its last reader. There is no setting, so no `Config`.
"""

from hexpo.adapters.stores.mapped.files import open_mapped, write_mapped

__all__ = ["open_mapped", "write_mapped"]
