"""How a process ended, in words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

_MEANINGS: Mapping[int, str] = {
    signal.SIGSEGV: "a fault in native code; its log has the Python stack",
    signal.SIGBUS: "a fault in native code, or a full shared memory",
    signal.SIGABRT: "native code gave up; its log says why",
    signal.SIGILL: "an instruction that this processor lacks: a build for another machine",
}


def cause_of(code: int, *, memory_kills: int = 0) -> str:
    """A return code as `subprocess` gives it.

    Args: memory_kills: how often the system has run out of memory since the process started.
    """
    if code >= 0:
        return "ended by itself" if code == 0 else f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code == signal.SIGKILL and memory_kills > 0:
        return f"killed by {name}: the machine was out of memory"
    why = _MEANINGS.get(-code, "")
    return f"killed by {name}{f' ({why})' if why else ''}"


def killed_for_memory(verdicts: Path = Path("/proc/vmstat")) -> int:
    """How many processes of this machine were ended for want of memory; 0 where it is not said."""
    if not verdicts.is_file():
        return 0
    for line in verdicts.read_text().splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return 0
