"""A run's progress on a rich console."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.live import Live
from rich.text import Text

from hexpo.adapters.trackers.console import view
from hexpo.adapters.trackers.wire import Quiet, split_evaluations
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import Metrics

_PER_SECOND = " per second"
_SECONDS = "time/step"


def _shown() -> dict[str, str]:
    return {
        "reward": "reward/mean",
        "loss": "loss/fit",
        "accuracy": "fit/accuracy",
        "length": "answer/length",
        "cut": "answer/cut",
        "tokens/s": f"tokens/generated{_PER_SECOND}",
    }


@attrs.frozen(kw_only=True)
class Config:
    """What the console shows."""

    shown: Mapping[str, str] = attrs.field(factory=_shown)
    """Labels, and the metric behind each; one that a step lacks is left out. `a per second` is
    metric `a` over the step's wall time."""
    samples: bool = True
    """Show the last answer."""


class ConsoleTracker:
    """A live view in a terminal; elsewhere a line a step, and a table at each evaluation."""

    def __init__(self, config: Config, console: Console, clock: Callable[[], float]) -> None:
        self._config = config
        self._console = console
        self._clock = clock
        self._view = view.View()
        self._before: dict[str, Mapping[str, float]] = {}
        self._live: Live | None = None
        self._first_step = 0
        self._began = 0.0

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self.close()
        self._view = view.View(title=title, step=first_step, steps=steps)
        self._first_step, self._began = first_step, self._clock()
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: view.render(self._view),
                refresh_per_second=4,
            )
            self._live.start()
        else:
            todo = f"steps {first_step + 1} to {steps}"
            done = f"all {steps} steps are done; run.steps=N asks for more"
            self._console.print(Text(f"{title}: {todo if first_step < steps else done}"))

    def report(self, step: int, metrics: Metrics) -> None:
        split = split_evaluations(metrics)
        if split.training:
            self._step(step, split.training)
        for name, numbers in split.evaluations.items():
            table = view.evaluation(name, step, numbers, self._before.get(name, {}))
            self._before[name] = numbers
            self._console.print(table)

    def samples(self, samples: Sequence[Sample]) -> None:
        if not self._config.samples or not samples:
            return
        last = samples[-1]
        score = last.failure if last.score is None else view.number(last.score)
        text = " ".join(f"{last.prompt} -> {last.answer} ({score})".split())
        self._view = attrs.evolve(self._view, sample=text)
        if self._live is None:
            self._console.print(Text(f"  {text}", no_wrap=True, overflow="ellipsis"))

    def progress(self, done: int, wanted: int, what: str) -> None:
        self._view = attrs.evolve(self._view, doing=what, done=done, wanted=wanted)

    def close(self) -> None:
        if self._live is not None:
            self._view = attrs.evolve(self._view, doing="")
            self._live.stop()
            self._live = None

    def _step(self, step: int, numbers: Mapping[str, float]) -> None:
        shown = tuple(
            (label, view.number(value))
            for label, name in self._config.shown.items()
            if (value := _value(name, numbers)) is not None
        )
        self._view = attrs.evolve(
            self._view,
            step=step,
            numbers=shown or self._view.numbers,
            seconds_left=self._seconds_left(step),
            doing="",
        )
        if self._live is None:
            self._console.print(Text(view.line(self._view)))

    def _seconds_left(self, step: int) -> float | None:
        made = step - self._first_step
        if made <= 0:
            return None
        return (self._clock() - self._began) / made * max(0, self._view.steps - step)


def _value(name: str, numbers: Mapping[str, float]) -> float | None:
    """A metric, or its rate; None if the step lacks it."""
    if not name.endswith(_PER_SECOND):
        return numbers.get(name)
    amount, seconds = numbers.get(name.removesuffix(_PER_SECOND)), numbers.get(_SECONDS)
    return amount / seconds if amount is not None and seconds else None


def build(
    config: Config,
    *,
    folder: Path,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tracker:
    """A tracker that shows the run on `console` (None: standard output); writes no file."""
    return Quiet(ConsoleTracker(config, console or Console(), clock), name="console")
