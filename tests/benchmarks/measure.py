"""What the benchmarks share: clocks, the calibration product, peak memory, tables.

Only the standard library is needed to import it, so scripts that run in a peer's environment can
use it too. Figures of one run are compared with each other only.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Spent(NamedTuple):
    """Time that something took."""

    wall: float
    """Seconds that passed."""
    cpu: float
    """Seconds of all threads of this process; child processes are not counted."""

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    def __add__(self, other: Spent) -> Spent:  # type: ignore[override]
        return Spent(self.wall + other.wall, self.cpu + other.cpu)


def now() -> Spent:
    """Both clocks; only differences mean anything."""
    return Spent(time.perf_counter(), time.process_time())


def spent_by(call: Callable[[], object]) -> Spent:
    """What one call takes."""
    began = now()
    call()
    return now() - began


def median(taken: Sequence[Spent]) -> Spent:
    """The median of each clock."""
    return Spent(
        statistics.median(one.wall for one in taken), statistics.median(one.cpu for one in taken)
    )


def rounds(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[Spent]]:
    """Times of each call, rounds alternating, after one round that is not counted."""
    taken: dict[str, list[Spent]] = {name: [] for name in calls}
    for number in range(repeats + 1):
        for name, call in calls.items():
            spent = spent_by(call)
            if number:
                taken[name].append(spent)
    return taken


def peak_bytes() -> int:
    """Largest resident size of this process. Linux counts `ru_maxrss` over exec, so its own mark
    is read first."""
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_above(call: Callable[[], object]) -> int:
    """Bytes by which the resident size rose at most while a call ran, its result included; Linux.

    What was freed earlier is given back to the system first: reused, it would not count.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    result = call()
    rise = _resident("VmHWM") - before
    del result
    return max(0, rise)


def _resident(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def calibration(*, repeats: int = 20) -> Spent:
    """GFLOP a second of a bf16 product of 2048 x 576 by 576 x 3072, by each clock: the best of some
    by the wall's, the mean by the processor's. What the machine gives now, neighbours included."""
    import torch

    x, w = torch.randn(2048, 576).bfloat16(), torch.randn(3072, 576).bfloat16()
    torch.nn.functional.linear(x, w)
    times = [spent_by(lambda: torch.nn.functional.linear(x, w)) for _ in range(repeats)]
    work = 2 * x.shape[0] * w.numel() / 1e9
    return Spent(work / min(times).wall, work * repeats / sum(one.cpu for one in times))


@contextmanager
def calibrated() -> Iterator[None]:
    """Print the machine, and the calibration product and the load before and after."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{_processor()}, {cores} processors, Python {platform.python_version()}")
    _say_state("before")
    yield
    _say_state("after")


def _say_state(when: str) -> None:
    rate, load = calibration(), os.getloadavg()[0]
    print(
        f"{when}: calibration product {rate.wall:.0f} GFLOP/s, {rate.cpu:.0f} a CPU second,"
        f" load {load:.1f}",
        flush=True,
    )


def _processor() -> str:
    description = Path("/proc/cpuinfo")
    if description.is_file():
        found = re.search(r"model name\s*:\s*(.+)", description.read_text())
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table in Markdown: text to the left, numbers to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    right = [
        any(isinstance(row[place], int | float) for row in rows) for place in range(len(header))
    ]
    print(f"\n{title}\n")
    print(_line(header, widths, right))
    rules = [
        "-" * (width + 1) + (":" if to_right else "-")
        for width, to_right in zip(widths, right, strict=True)
    ]
    print(f"|{'|'.join(rules)}|")
    for row in texts:
        print(_line(row, widths, right))
    print(flush=True)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "| " + " | ".join(padded) + " |"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")
    return str(value)


def times_as_fast(base: Spent, other: Spent) -> tuple[str, str]:
    """How many times `base` took as long as `other`: wall, CPU."""
    return f"x{base.wall / other.wall:.2f}", f"x{base.cpu / other.cpu:.2f}"


def restart_with_process_settings() -> None:
    """Go on in a process that has the settings of the library's own command line: threads and
    allocators read them once, at the start."""
    from hexpo.adapters.platform.cpu import Config, build
    from hexpo.infrastructure.process import with_environment

    with_environment(build(Config()))
