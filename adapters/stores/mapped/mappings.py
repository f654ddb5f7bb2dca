"""Files as they lie in this process's memory. A file that is written over stays mapped, so that the
system has not to find its pages again: half of the time of a copy."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from hexpo.adapters.stores.mapped.spares import LEAST


class Mappings:
    """By inode: a spare file has another name, and is the same memory. Not for several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[int, mmap.mmap] = {}

    def of(self, descriptor: int) -> mmap.mmap:
        """A whole open file, shared with all who map it: to be read, or written by who made it."""
        facts = os.fstat(descriptor)
        found = self._kept.get(facts.st_ino)
        if found is None or len(found) < facts.st_size:
            found = mmap.mmap(descriptor, 0)
            if facts.st_size >= LEAST:
                self._kept[facts.st_ino] = found
        return found

    def known(self, descriptor: int, size: int) -> mmap.mmap | None:
        """The mapping of an open file of at least this size, if it is mapped already."""
        found = self._kept.get(os.fstat(descriptor).st_ino)
        return None if found is None or len(found) < size else found

    def trim(self) -> None:
        """Let go of files that were removed; their memory is free when no row of them is held."""
        with os.scandir(self._folder) as entries:
            there = {entry.inode() for entry in entries}
        self._kept = {inode: one for inode, one in self._kept.items() if inode in there}
