"""The C library's memory: settings before the process starts, and giving freed pages back."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

# Tensors of hundreds of megabytes come and go in each step. By default glibc maps and unmaps each
# of them, and the kernel clears every page again: hundreds of thousands of faults a step. These
# keep freed memory. Huge pages are not asked for: where the kernel makes them on first touch, a
# gigabyte costs 2.3-3.0 CPU seconds instead of 0.6 (measured), and nothing is gained afterwards.
_TUNABLES: Mapping[str, int] = {
    "glibc.malloc.mmap_threshold": 4 << 30,
    "glibc.malloc.trim_threshold": 16 << 30,
    "glibc.malloc.top_pad": 256 << 20,
}


def is_glibc() -> bool:
    """Whether the C library is glibc (musl and macOS know no tunables)."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError, AttributeError):
        return False


def tunables() -> str:
    """The value of GLIBC_TUNABLES that keeps freed memory."""
    return ":".join(f"{name}={value}" for name, value in _TUNABLES.items())


def trim() -> None:
    """Give freed memory back to the system; nothing happens where the C library can't."""
    if is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes(*, status: Path = Path("/proc/self/status")) -> int:
    """Resident size of this process now, in bytes; 0 where the system does not say."""
    return _field("VmRSS:", status)


def peak_bytes(*, status: Path = Path("/proc/self/status")) -> int:
    """Largest resident size of this process so far, in bytes.

    Linux counts `ru_maxrss` over exec, so that a child inherits its parent's peak: the kernel's
    own high-water mark is read first.
    """
    if peak := _field("VmHWM:", status):
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _field(name: str, status: Path) -> int:
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def total_bytes() -> int:
    """Physical memory of the machine, in bytes; 0 where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
