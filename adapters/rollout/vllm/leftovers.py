"""Shared memory that vLLM's processes leave behind when they are ended from outside (0.32)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHARED = Path("/dev/shm")
"""Where Linux keeps it; elsewhere nothing is found."""
MADE = ("psm_", "vllm_dist_")
"""How the names of vLLM's segments begin: its messages, and its ranks' sums on a CPU."""


def segments(processes: Iterable[int]) -> set[Path]:
    """vLLM's segments that these processes have mapped; one that is gone has none."""
    found: set[Path] = set()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
        except OSError:
            continue
        paths = (Path(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) > 5)
        found.update(path for path in paths if path.parent == SHARED and path.name.startswith(MADE))
    return found


def remove(left: Iterable[Path]) -> None:
    """Take segments away; whoever still has one mapped keeps it until its end."""
    for path in left:
        path.unlink(missing_ok=True)


def end(llm: Any, seconds: float | None = None) -> None:
    """End vLLM's processes, and what they would leave behind.

    Args: llm: an AsyncLLM. seconds: how long its processes may take; None: as vLLM chooses.
    """
    import psutil  # a dependency of vLLM

    left = segments(child.pid for child in psutil.Process().children(recursive=True))
    try:
        llm.shutdown(seconds)
    finally:
        remove(left)
