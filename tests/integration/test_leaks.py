"""A run leaves nothing of itself in its process. `tests/benchmarks/leaks.py` makes many."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

COUNTING = """
import json, os, sys, threading
import psutil
from hexpo.entrypoints.library import build

def handles():
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue  # the one that listed them
    return found

def left():
    mine = f"-{os.getpid()}-"
    return {
        "handles": len(handles()),
        "ours": [name for name in handles() if "/hexpo-" in name],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": len(psutil.Process().children(recursive=True)),
        "shared memory": [name for name in os.listdir("/dev/shm") if mine in name],
    }

counted = []
for _ in range(2):
    report = build(json.loads(sys.argv[1]), *sys.argv[2:]).train()
    assert report.finished and report.history[-1]["transfer/bytes"] > 0
    counted.append(left())
print(json.dumps(counted))
"""


@pytest.mark.slow
def test_a_run_with_a_replica_leaves_no_process_handle_thread_or_shared_memory(
    tiny: dict[str, Any],
) -> None:
    """O3, I2: the second run of a process leaves what the first one left, which is what torch and
    its friends open once; weights went through shared memory."""
    settings = ("rollout.replicas=1", "run.steps=1", "cluster.options.oversubscribe=true")
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, json.dumps(tiny), *settings],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert second == first
    assert first["ours"] == first["shared memory"] == []
    assert first["children"] == 0
