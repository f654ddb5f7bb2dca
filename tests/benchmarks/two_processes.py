"""The demonstration with generation and training side by side, in two processes.

    python tests/benchmarks/two_processes.py [--steps 21] [--staleness 1] [--seed 0] [--out FILE]
    python tests/benchmarks/two_processes.py --record FILE

The trainer is in this process; the embedded rollout has its own copy of the weights in another one
and gets each version through shared memory; each has half of the cores. Printed: held-out accuracy
(25 questions, 8 samples each), and medians over the steps of step time, both busy shares and mean
age, beside a forecast of the same schedule from the lengths and speeds of this very run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measure import ROOT, calibrated, print_table, restart_with_process_settings

CONFIG = ROOT / "examples/addition.yaml"
GROUPS, SLOTS = 8, 64
"""Prompts and answers of a step."""
WAVE_SECONDS = 0.5
"""Answers that begin within so long began together."""


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
            f" transfer {found['time/transfer']:.2f}; age {found.get('age/mean', 0):.2f}",
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


async def trained(run: Any, recorder: Recorder) -> Watched:
    """Start the other process and train to the end."""
    container = run.container
    await container.processes().start()
    rollout = Watched(container.rollout())
    container.rollout.override(rollout)
    container.tracker.override(recorder)
    await run.train_async()
    return rollout


def main() -> None:
    """Train, print, leave the record, and forecast the same run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--staleness", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", type=Path, help="forecast from this file; train nothing")
    parser.add_argument("--overrides", nargs="*", default=[], help="section.key=value")
    arguments = parser.parse_args()
    if arguments.record:
        show(json.loads(arguments.record.read_text()))
        return
    with calibrated():
        record = measured(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(record))
    show(record)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, and what was seen."""
    from hexpo.entrypoints import library

    with tempfile.TemporaryDirectory() as folder:
        run = library.build(
            CONFIG,
            f"run.steps={arguments.steps}",
            f"run.seed={arguments.seed}",
            f"asynchrony.max_staleness={arguments.staleness}",
            "rollout.replicas=1",
            "evaluation.every=0",
            "checkpoint.every=0",
            "checkpoint.export=false",
            *arguments.overrides,
            folder=folder,
        )
        recorder = Recorder()
        rollout = asyncio.run(trained(run, recorder))
    return {
        "began": recorder.began,
        "steps": recorder.steps,
        "requests": rollout.requests,
        "pauses": rollout.pauses,
        "accuracy": recorder.accuracy,
        "staleness": arguments.staleness,
    }


def show(record: Mapping[str, Any]) -> None:
    """Medians over the steps after the first, which has nothing to overlap with, beside those of
    the same schedule in virtual time, with the lengths and speeds of this very run."""
    steps = record["steps"]
    ends = [record.get("began", steps[0]["ended"] - steps[0]["time/step"])]
    ends += [step["ended"] for step in steps]
    spans = list(zip(steps, ends, ends[1:], strict=False))[1:]
    running = _merged([(one["began"], one["ended"]) for one in trained_requests(record)])
    seen = {
        "step, s": median_of(until - since for _, since, until in spans),
        "trainer busy": median_of(training(step) / (until - since) for step, since, until in spans),
        "rollout busy": median_of(
            busy(running, record["pauses"], since, until) / (until - since)
            for _, since, until in spans
        ),
        "mean age": median_of(step["age/mean"] for step in steps[1:]),
    }
    told = forecast_of(record)
    gaps = {name: told[name] / seen[name] - 1 if seen[name] else 0.0 for name in seen}
    rows = [(name, seen[name], told[name], f"{gaps[name]:+.0%}") for name in seen]
    print_table("Medians over the steps", ["what", "measured", "forecast", "error"], rows)
    print(f"largest error: {max(map(abs, gaps.values())):.0%}, 15 % is allowed")
    accuracies = ", ".join(f"{accuracy:.1%}" for accuracy in record["accuracy"])
    print(f"held-out accuracy before and after: {accuracies}")


def median_of(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def trained_requests(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Requests of training, not of evaluations."""
    return [one for one in record["requests"] if one["id"].startswith("train")]


def busy(
    running: Sequence[tuple[float, float]],
    pauses: Sequence[Sequence[float]],
    since: float,
    until: float,
) -> float:
    """Seconds in which something ran and nothing was paused."""
    held = [pause for pause in pauses if len(pause) == 2]
    lost = sum(_overlap(running, max(a, since), min(b, until)) for a, b in held)
    return _overlap(running, since, until) - lost


def forecast_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The same schedule in virtual time, with this run's lengths and speeds."""
    from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
    from hexpo.adapters.simulated.lengths import Lengths, Measured
    from hexpo.application.continuing import OnUpdate
    from hexpo.infrastructure.forecast import Choice, Costs, Workload, forecast
    from hexpo.infrastructure.forecast.fitting import fit

    requests, steps = trained_requests(record), record["steps"][1:]
    lengths = sorted(float(one["length"]) for one in requests)
    waves = _waves(record)
    token, request = fit(
        [wave["seconds"] for wave in waves],
        [wave["longest"] for wave in waves],
        [wave["tokens"] for wave in waves],
    )
    prompt = round(statistics.mean(one["prompt"] for one in requests))
    per_step = statistics.mean(lengths) * SLOTS + prompt * SLOTS
    workload = Workload(
        groups=GROUPS,
        samples=SLOTS // GROUPS,
        lengths=Lengths(quantile=Measured(lengths=tuple(lengths)), longest=int(lengths[-1])),
        prompt_tokens=prompt,
    )
    costs = Costs(
        replicas=1,
        rollout=RolloutSpeed(token_seconds=token, request_seconds=request, slots=SLOTS),
        training=TrainingCost(token_seconds=median_of(map(training, steps)) / per_step),
        load_seconds=median_of(b - a for a, b in record["pauses"][1:]),
    )
    told = forecast(
        workload,
        costs,
        Choice(max_staleness=record["staleness"], on_update=OnUpdate.KEEP),
        steps=len(steps),
        warmup=1,
    )
    return {
        "step, s": told.step_seconds,
        "trainer busy": told.training_seconds / told.step_seconds,
        "rollout busy": told.rollout_running,
        "mean age": told.age_mean,
    }


def _waves(record: Mapping[str, Any]) -> list[dict[str, float]]:
    """Answers that started together: seconds without pauses, longest, tokens of all."""
    found: list[list[Mapping[str, Any]]] = []
    for one in sorted(trained_requests(record), key=lambda request: request["began"]):
        if found and one["began"] - found[-1][0]["began"] < WAVE_SECONDS:
            found[-1].append(one)
        else:
            found.append([one])
    waves = []
    for wave in found:
        if len(wave) > SLOTS:
            continue  # some of them waited for a slot
        since, until = wave[0]["began"], max(one["ended"] for one in wave)
        waves.append(
            {
                "seconds": busy([(since, until)], record["pauses"], since, until),
                "longest": float(max(one["length"] for one in wave)),
                "tokens": float(sum(one["length"] for one in wave)),
            }
        )
    return waves


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    restart_with_process_settings()
    main()
