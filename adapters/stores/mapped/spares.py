"""Files of dropped rows, kept to be written over: their memory is there already.

Writing into new pages of shared memory takes two and a half times as long as writing over old ones
(measured), since the system clears each page first.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_SPARE = ".spare"
LEAST = 1 << 18
"""Bytes of a file that is worth it."""


class Spares:
    """May be used by several processes at once: a file is taken by renaming it."""

    def __init__(self, folder: Path, *, most_bytes: int, cool_seconds: float = 1.0) -> None:
        """Args: most_bytes: kept in all; what is beyond is removed, the oldest first.
        cool_seconds: how long a file lies first: whoever was reading it when it was dropped has
        ended then.
        """
        self._folder, self._most = folder, most_bytes
        self._cool = int(cool_seconds * 1e9)

    def keep(self, path: Path) -> None:
        """Instead of removing a file."""
        try:
            size = path.stat().st_size
            if not LEAST <= size <= self._most:
                path.unlink()
                return
            path.rename(self._folder / f"{time.time_ns():020d}-{size}-{path.stem}{_SPARE}")
        except FileNotFoundError:
            return
        kept = 0
        for _, size, name in reversed(self._all()):
            kept += size
            if kept > self._most:
                (self._folder / name).unlink(missing_ok=True)

    def claim(self, size: int, to: Path) -> None:
        """Put the best fitting file there, between half and twice the size, if there is one."""
        if size < LEAST:
            return
        before = time.time_ns() - self._cool
        fitting = [
            (has < size, abs(has - size), name)
            for since, has, name in self._all()
            if since <= before and size <= 2 * has <= 4 * size
        ]
        for _, _, name in sorted(fitting):
            try:
                (self._folder / name).rename(to)
            except FileNotFoundError:  # another process was faster
                continue
            return

    def _all(self) -> list[tuple[int, int, str]]:
        """Time of keeping, bytes and name, oldest first."""
        found = []
        for name in os.listdir(self._folder):
            if name.endswith(_SPARE):
                since, size, _ = name.split("-", 2)
                found.append((int(since), int(size), name))
        return sorted(found)
