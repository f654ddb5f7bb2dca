"""What this machine has, and which process holds which device."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from hexpo.domain.errors import NotEnough

_WHOLE = 1 - 1e-6


def cpus() -> float:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return float(len(os.sched_getaffinity(0)))
    return float(os.cpu_count() or 1)


def memory_gib() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


class Devices:
    """Accelerators by name, given out whole or in parts of one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._free = dict.fromkeys(names, 1.0)
        self._held: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._free)

    def take(self, holder: str, count: float) -> tuple[str, ...]:
        """Devices for a holder: whole ones, or a part of one where `count` is below 1.

        Raises: NotEnough: what is free lies in parts that are too small.
        """
        part = count if count < _WHOLE else 1.0
        wanted = 0 if count == 0 else max(1, math.ceil(count - 1e-6))
        # The fullest that still has room: whole devices stay whole.
        fit = sorted(
            (name for name, free in self._free.items() if free >= part - 1e-6),
            key=lambda name: self._free[name],
        )[:wanted]
        if len(fit) < wanted:
            raise NotEnough(
                f"{holder}: {count:g} accelerators wanted, {len(fit)} with room;"
                " what is free lies in smaller parts"
            )
        for name in fit:
            self._free[name] -= part
        self._held[holder] = dict.fromkeys(fit, part)
        return tuple(fit)

    def release(self, holder: str) -> None:
        """Give a holder's devices back."""
        for name, part in self._held.pop(holder, {}).items():
            self._free[name] += part
