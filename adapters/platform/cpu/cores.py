"""How many cores this process may use, and what they can compute."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from hexpo.domain.errors import WrongValue


@attrs.frozen
class Cores:
    """What limits the number of useful threads."""

    logical: int
    """Hardware threads that the scheduler may give to this process (its affinity)."""
    physical: int
    """Cores behind them: two hardware threads of one core share its arithmetic."""
    quota: float | None
    """Processors' worth of time that the control group grants; None: no limit."""

    @property
    def usable(self) -> int:
        """Threads worth starting: one a core, never more than the quota pays for."""
        granted = self.physical if self.quota is None else int(self.quota)
        return max(1, min(self.physical, granted))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS has no affinity


def _physical(logical: set[int], system: Path) -> int:
    """Cores that `logical` lie on; every logical one counts where the system does not say."""
    siblings = set()
    for number in logical:
        topology = system / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list"
        siblings.add(topology.read_text().strip() if topology.is_file() else str(number))
    return len(siblings)


def _quota(system: Path) -> float | None:
    """Processors granted by the control group, version 2 or 1."""
    modern = system / "fs/cgroup/cpu.max"
    if modern.is_file():
        amount, period = modern.read_text().split()
        return None if amount == "max" else int(amount) / int(period)
    old = system / "fs/cgroup/cpu/cpu.cfs_quota_us"
    if old.is_file():
        granted = int(old.read_text())
        each = int((old.parent / "cpu.cfs_period_us").read_text())
        return granted / each if granted > 0 else None
    return None


def count_cores(*, system: Path = Path("/sys")) -> Cores:
    """Cores of this process, by affinity, core topology and control group."""
    logical = _affinity()
    return Cores(len(logical), _physical(logical, system), _quota(system))


_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")


def instruction_sets(*, description: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Those instruction sets that decide how fast bf16 and fp32 products are; () if unknown."""
    if not description.is_file():
        return ()
    for line in description.read_text().splitlines():
        if line.startswith("flags"):
            present = set(line.partition(":")[2].split())
            return tuple(flag for flag in _FLAGS if flag in present)
    return ()


def threads_of(text: str) -> int:
    """First number of an OMP_NUM_THREADS value (`4` or `4,2`). Raises: WrongValue."""
    first = text.partition(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        raise WrongValue(f"OMP_NUM_THREADS is {text!r}: set it to a positive number, or unset it")
    return int(first)
