"""A run in this process leaves nothing of itself in it. `tests/benchmarks/leaks.py` makes many."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from hexpo.entrypoints.library import build


def handles() -> list[str]:
    """Files and sockets that this process has open."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        path = Path("/proc/self/fd", handle)
        if path.is_symlink():  # the one that listed them is gone
            found.append(os.readlink(path))
    return sorted(found)


@pytest.mark.slow
def test_a_run_with_a_replica_leaves_no_process_handle_thread_or_shared_memory(
    tiny: dict[str, Any],
) -> None:
    """O3, I2: before anything is collected; weights went through shared memory."""
    before, threads = handles(), threading.active_count()
    children = psutil.Process().children()
    report = build(
        tiny, "rollout.replicas=1", "run.steps=1", "cluster.options.oversubscribe=true"
    ).train()
    assert report.finished
    assert report.history[-1]["transfer/bytes"] > 0
    assert [one for one in handles() if "/hexpo-" in one] == []
    assert len(handles()) <= len(before) + 1  # the null device, which torch opens once
    assert threading.active_count() <= threads + 1  # a progress bar's monitor
    assert set(psutil.Process().children()) <= set(children)
    mine = f"-{os.getpid()}-"
    assert [name for name in os.listdir("/dev/shm") if mine in name] == []
