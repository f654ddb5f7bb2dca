"""The demonstration with generation and training side by side, in two processes of a thread each.

    python tests/benchmarks/two_processes.py [--steps 20] [--staleness 1] [--seed 0] [--out FILE]

The trainer is in this process; the embedded rollout has its own copy of the weights in another one
and gets each version through shared memory. Printed: held-out accuracy (25 questions, 8 samples
each), and medians over the steps of step time, both busy shares and mean age. `--out` leaves what a
simulator needs: each request's length, begin and end, and each step's seconds of training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from measure import ROOT, calibrated, print_table, restart_with_process_settings

CONFIG = ROOT / "examples/addition.yaml"
READER = "rollout-0"


class Watched:
    """A rollout engine whose requests and pauses are noted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.requests: list[dict[str, Any]] = []
        self.pauses: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Any) -> Any:
        began = time.perf_counter()
        answer = await self._engine.generate(request)
        self.requests.append(
            {
                "id": request.id,
                "session": request.session,
                "prompt": len(request.prompt),
                "length": len(answer.tokens),
                "began": began,
                "ended": time.perf_counter(),
            }
        )
        return answer

    async def pause(self, mode: Any) -> None:
        self.pauses.append([time.perf_counter()])
        await self._engine.pause(mode)

    async def resume(self) -> None:
        await self._engine.resume()
        self.pauses[-1].append(time.perf_counter())

    def busy(self, since: float, until: float) -> float:
        """Seconds in which something ran and nothing was paused."""
        running = _merged([(one["began"], one["ended"]) for one in self.requests])
        paused = [(a, b) for a, b in (pause for pause in self.pauses if len(pause) == 2)]
        total = _overlap(running, since, until)
        return total - sum(_overlap(running, max(a, since), min(b, until)) for a, b in paused)


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def _overlap(spans: Sequence[tuple[float, float]], since: float, until: float) -> float:
    return sum(max(0.0, min(b, until) - max(a, since)) for a, b in spans)


class Sending:
    """A training engine with a sender beside its weights."""

    def __init__(self, engine: Any, policy: Any, send: Any) -> None:
        self._engine, self._policy, self._send = engine, policy, send

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _stream(self) -> Iterator[Any]:
        from hexpo.application.ports.transfer import Weight

        for name in self._policy.names():
            tensor = self._policy.weight(name)
            yield Weight(name=name, shape=tuple(tensor.shape), tensor=tensor)

    async def send(self, update: Any) -> Any:
        return await asyncio.to_thread(self._send, self._stream(), update)


class Recorder:
    """A tracker that keeps each step's metrics and when it ended."""

    def __init__(self) -> None:
        self.began = 0.0
        self.steps: list[dict[str, float]] = []
        self.accuracy: list[float] = []

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self.began = time.perf_counter()

    def report(self, step: int, metrics: Any) -> None:
        from hexpo.domain.metrics import values

        found = values(metrics)
        accuracy = [value for name, value in found.items() if name.endswith("held-out/mean")]
        if accuracy:
            self.accuracy.append(accuracy[0])
            return
        self.steps.append({**found, "ended": time.perf_counter()})
        print(
            f"step {step}: reward {found['reward/mean']:.2f}, {found['time/step']:.2f} s, of which"
            f" training {training(found):.2f}, waiting {found.get('time/wait', 0):.2f},"
            f" transfer {found['time/transfer']:.2f}; age {found.get('schedule/age', 0):.2f}",
            flush=True,
        )

    def samples(self, samples: Sequence[object]) -> None:
        """Not kept."""

    def progress(self, done: int, wanted: int, what: str) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing is open."""


def training(step: dict[str, float]) -> float:
    """Seconds in which the trainer computed."""
    return step.get("time/score", 0.0) + step.get("time/train", 0.0)


@asynccontextmanager
async def elsewhere(run: Any) -> AsyncIterator[Watched]:
    """The rollout in another process, put into the run's container."""
    from hexpo.adapters.cluster import local
    from hexpo.adapters.rollout.wire import connect
    from hexpo.application.ports.cluster import Resources
    from hexpo.infrastructure.config.schema import Adapter
    from hexpo.infrastructure.parts import make
    from hexpo.infrastructure.serve import rollout_specs, sender_of

    container = run.container
    specs = rollout_specs(
        run.config,
        container.platform(),
        replicas=1,
        transfer=Adapter(kind="shared_memory"),
        needs=Resources(cpus=1),
        environment={"OMP_NUM_THREADS": "1"},
    )
    cluster = local.build(local.Config(), folder=run.folder)
    try:
        (process,) = await cluster.start(specs)
        rollout = Watched(await connect(process))
        training_ = Sending(container.training(), container.policy(), sender_of("shared_memory"))
        transfer = make(
            "transfer", "shared_memory", {}, training=training_, replicas={READER: rollout}
        )
        for provider, part in (
            (container.rollout, rollout),
            (container.training, training_),
            (container.transfer, transfer),
        ):
            provider.override(part)
        yield rollout
        await transfer.close()
        await rollout.close()
    finally:
        await cluster.close()


async def trained(run: Any, recorder: Recorder) -> Watched:
    """Train to the end."""
    async with elsewhere(run) as rollout:
        run.container.tracker.override(recorder)
        await run.train_async()
        return rollout


def main() -> None:
    """Train, print, leave the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--staleness", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--overrides", nargs="*", default=[], help="section.key=value")
    arguments = parser.parse_args()
    from hexpo.entrypoints import library

    with calibrated(), tempfile.TemporaryDirectory() as folder:
        run = library.build(
            CONFIG,
            f"run.steps={arguments.steps}",
            f"run.seed={arguments.seed}",
            f"asynchrony.max_staleness={arguments.staleness}",
            "evaluation.every=0",
            "checkpoint.every=0",
            "checkpoint.export=false",
            *arguments.overrides,
            folder=folder,
        )
        recorder = Recorder()
        rollout = asyncio.run(trained(run, recorder))
    show(recorder, rollout)
    if arguments.out:
        record = {
            "steps": recorder.steps,
            "requests": rollout.requests,
            "pauses": rollout.pauses,
            "accuracy": recorder.accuracy,
            "staleness": arguments.staleness,
        }
        arguments.out.write_text(json.dumps(record))


def show(recorder: Recorder, rollout: Watched) -> None:
    """Medians over the steps after the first, which has nothing to overlap with."""
    ends = [recorder.began, *(step["ended"] for step in recorder.steps)]
    shares = [
        {
            "step, s": until - since,
            "trainer busy": training(step) / (until - since),
            "rollout busy": rollout.busy(since, until) / (until - since),
            "mean age": step.get("schedule/age", 0.0),
            "transfer, s": step["time/transfer"],
        }
        for step, since, until in zip(recorder.steps, ends, ends[1:], strict=False)
    ][1:]
    rows = [(name, statistics.median(one[name] for one in shares)) for name in shares[0]]
    print_table("Medians over the steps", ["what", "median"], rows)
    accuracies = ", ".join(f"{accuracy:.1%}" for accuracy in recorder.accuracy)
    print(f"held-out accuracy before and after: {accuracies}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parent))
    restart_with_process_settings()
    main()
