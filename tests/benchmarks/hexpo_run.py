"""One run of the library with clocks on its steps; a child process of `step.py` and `demo.py`.

The run is made by the public facade from a configuration; what is measured hangs on its ports.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import Spent, now
from record import Evaluation, Step, job_of, of

PARTS = {
    ("training", "accumulate"): "forward and backward",
    ("training", "step"): "optimizer",
    ("training", "score"): "score",
    ("transfer", "transfer"): "repack",
}
"""Which calls of which part of the container are timed, and under what name."""


class Clocks:
    """Where the time of the present step went."""

    def __init__(self) -> None:
        self.parts: dict[str, Spent] = {}

    def on(self, part: object, calls: dict[str, str]) -> Any:
        """The same part; the named calls (name -> what it is) are timed."""
        return _Clocked(
            part, {call: self._timed(getattr(part, call), calls[call]) for call in calls}
        )

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        async def timed(*args: Any, **kwargs: Any) -> Any:
            began = now()
            try:
                return await call(*args, **kwargs)
            finally:
                self.parts[name] = self.parts.get(name, Spent(0.0, 0.0)) + (now() - began)

        return timed

    def take(self) -> dict[str, Spent]:
        """What was gathered since the last call."""
        parts, self.parts = self.parts, {}
        return parts


class _Clocked:
    def __init__(self, part: object, calls: dict[str, Callable[..., Any]]) -> None:
        self._part, self._calls = part, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._part, name)


class Recorder:
    """A tracker that keeps steps and evaluations with their times."""

    def __init__(self, clocks: Clocks, *, stop: Callable[[], None], until: float | None) -> None:
        self._clocks, self._stop, self._until = clocks, stop, until
        self._since = now()
        self.steps: list[Step] = []
        self.evaluations: list[Evaluation] = []

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self._since = now()

    def report(self, step: int, metrics: Any) -> None:
        """A training step, or an evaluation: its metrics say so."""
        from hexpo.domain.metrics import values

        spent = now() - self._since
        found = values(metrics)
        accuracy = [value for name, value in found.items() if name.endswith("held-out/mean")]
        if accuracy:
            self.evaluations.append(Evaluation(step, accuracy[0], spent))
        else:
            parts = self._clocks.take()
            parts["generate, grade, rest"] = spent - sum(parts.values(), Spent(0.0, 0.0))
            tokens = int(found["tokens/generated"])
            self.steps.append(Step(spent, found["reward/mean"], tokens, parts))
            self._stop_if_reached()
        self._since = now()

    def _stop_if_reached(self) -> None:
        last = [step.reward for step in self.steps[-3:]]
        if self._until is not None and len(last) == 3 and sum(last) / 3 >= self._until:
            self._stop()

    def samples(self, samples: Sequence[object]) -> None:
        """Not kept."""

    def progress(self, done: int, wanted: int, what: str) -> None:
        """Not shown."""

    def close(self) -> None:
        """Nothing is open."""


class Noise:
    """A reward that every group gets a signal from, and that takes no time."""

    def __init__(self) -> None:
        self._draw = random.Random(0)

    async def grade(self, rows: Sequence[object]) -> list[Any]:
        from hexpo.domain.trajectory import Scored

        return [Scored(value=self._draw.random()) for _ in rows]

    async def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Run the job that the argument describes: `config`, `overrides`, `noise`, `until`."""
    began, job = Spent(time.perf_counter(), 0.0), job_of(sys.argv[1])
    from hexpo.entrypoints import library

    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        run = library.build(Path(job["config"]), *job["overrides"], folder=folder)
        container = run.container
        if job.get("noise"):
            container.reward.override(Noise())
        for part in {part for part, _ in PARTS}:
            calls = {call: name for (of_part, call), name in PARTS.items() if of_part == part}
            provider = getattr(container, part)
            provider.override(clocks.on(provider(), calls))
        recorder = Recorder(clocks, stop=run.stop, until=job.get("until"))
        container.tracker.override(recorder)
        asyncio.run(run.train_async())
    of(recorder.steps, recorder.evaluations, began, now()).write()


if __name__ == "__main__":
    from measure import restart_with_process_settings

    restart_with_process_settings()
    main()
