"""Many runs in one process, one after the other: what each leaves behind.

    python tests/benchmarks/leaks.py --runs 200                  # local: one replica each
    python tests/benchmarks/leaks.py --runs 10 --cluster ray     # a Ray of its own each
    python tests/benchmarks/leaks.py --runs 20 --engine embedded

Each run trains a step of a tiny model with a rollout replica in a process of its own, then ends.
After it are counted: processes below this one, its handles (sockets among them) and threads, what
lies in shared memory and in the temporary folder, and its memory. The last line says what grew
between the runs after the first and the last one. The replica's own process ends with its run, so
it loads no model (`quick.py`): most of a run would be its start; `--engine` gives it a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import runpy
import tempfile
import threading
import time
import warnings
from pathlib import Path

import psutil
import quick

from hexpo.entrypoints.library import build
from hexpo.infrastructure import serve

EXAMPLES = Path(__file__).parents[2] / "examples"
COLUMNS = ("processes", "handles", "sockets", "threads", "shared memory", "temporary", "MiB")


def counts() -> dict[str, int]:
    """What this process holds now."""
    own = psutil.Process()
    handles = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            handles.append(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue  # the one that listed them
    return {
        "processes": len(own.children(recursive=True)),
        "handles": len(handles),
        "sockets": sum(target.startswith("socket:") for target in handles),
        "threads": len(os.listdir("/proc/self/task")),
        "shared memory": len(os.listdir("/dev/shm")),
        "temporary": len(os.listdir(tempfile.gettempdir())),
        "MiB": own.memory_info().rss // 2**20,
    }


def configuration(folder: Path, cluster: str) -> dict[str, object]:
    """One step, one prompt, two short answers, one replica."""
    make = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"]
    model = make(folder / "tiny")
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "1 + 1 = ?", "truth": "2"}) + "\n")
    options = {"oversubscribe": True} if cluster == "local" else {"cpus": 2}
    return {
        "run": {"folder": str(folder / "runs"), "steps": 1},
        "model": {"path": str(model), "precision": "fp32"},
        "data": {
            "max_prompt_tokens": 64,
            "train": {"kind": "jsonl", "options": {"paths": [str(rows)]}},
        },
        "reward": {
            "kind": "python",
            "options": {"function": f"{EXAMPLES / 'tiny_reward.py'}:reward", "workers": 1},
        },
        "rollout": {"samples": 2, "max_new_tokens": 4, "replicas": 1},
        "training": {"prompts_per_step": 1},
        "cluster": {"kind": cluster, "options": options},
        "checkpoint": {"every": 0, "export": False},
        "trackers": [{"kind": "jsonl"}],
        "platform": {"options": {"threads": 1}},
    }


def main() -> None:
    """Train, count, and print every tenth of the way."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--runs", type=int, default=200)
    asked.add_argument("--cluster", choices=("local", "ray"), default="local")
    asked.add_argument("--engine", choices=("quick", "embedded"), default="quick")
    given = asked.parse_args()
    if given.engine == "quick":
        serve.ROLLOUT_REPLICA = quick.REPLICA
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="l-") as place:
        folder = Path(place)
        tempfile.tempdir = str(folder / "t")  # others use the system's
        Path(tempfile.tempdir).mkdir()
        config = configuration(folder, given.cluster)
        began, first = time.perf_counter(), None
        print(f"{'run':>5}" + "".join(f"{name:>15}" for name in COLUMNS))
        for number in range(1, given.runs + 1):
            report = build(config).train()
            assert report.finished
            now = counts()
            first = first or now
            if number == 1 or number % max(1, given.runs // 10) == 0:
                print(f"{number:>5}" + "".join(f"{now[name]:>15}" for name in COLUMNS), flush=True)
        seconds = (time.perf_counter() - began) / given.runs
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        spent = [sum(resource.getrusage(who)[:2]) / given.runs for who in whose]
        grown = {name: now[name] - first[name] for name in COLUMNS if now[name] != first[name]}
        alive = [thread.name for thread in threading.enumerate()]
        print(
            f"a run: {seconds:.1f} s; of processors {spent[0]:.1f} s here, {spent[1]:.1f} s below"
        )
        print(f"grown since the first run: {grown or 'nothing'}; {alive=}")


if __name__ == "__main__":
    main()
