"""What a process writes: a file in the run folder, followed line by line."""

from __future__ import annotations

import logging
from pathlib import Path

_log = logging.getLogger(__name__)
_QUOTED = 12
"""Lines of a dead process's log that are shown."""
_NEAR_THE_END = 8192


class Tail:
    """One growing file."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self.path = name, path
        self._read = self._began = path.stat().st_size if path.exists() else 0
        self._half = b""

    def pass_on(self) -> None:
        """Log what has come since the last time, a line a record."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._half = (self._half + new).split(b"\n")
        for line in lines:
            _log.info("[%s] %s", self._name, line.decode(errors="replace"))

    def quote(self) -> str:
        """The last lines, to stand before a cause; nothing when it wrote nothing."""
        if not self.path.exists() or (end := self.path.stat().st_size) == self._began:
            return ""
        with self.path.open("rb") as file:
            file.seek(max(self._began, end - _NEAR_THE_END))
            lines = file.read().decode(errors="replace").splitlines()[-_QUOTED:]
        quoted = "".join(f"\n  | {line}" for line in lines)
        return f"{self.path} ends with{quoted}\n"
