"""Which process something belongs to, and whether that process still lives."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STATE, _BORN = 0, 19
"""Fields of a process's line in /proc after its name: one letter, and its start in ticks."""


def present() -> dict[str, Any]:
    """What this process is known by later. A number alone would not do: numbers are used again,
    in a container after each restart."""
    number = os.getpid()
    return {"pid": number, "host": platform.node(), "born": _born(number)}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Whether a process lives that `present` described; None: on another machine, nobody here can
    say."""
    if process.get("host", platform.node()) != platform.node():
        return None
    number = process.get("pid")
    if not isinstance(number, int):
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    born = _born(number)
    return bool(born == process.get("born", born))


def _born(number: int) -> str | None:
    """When a process was started; empty of one that has ended and was not asked for yet; None
    where the system does not say."""
    try:
        line = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return "" if fields[_STATE] == "Z" else fields[_BORN]
