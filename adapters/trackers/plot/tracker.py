"""The reward curve and the held-out accuracy as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import attrs

from hexpo.adapters.trackers.plot.curve import Curve, draw, read
from hexpo.adapters.trackers.wire import Quiet, split_evaluations
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.errors import MissingExtra
from hexpo.domain.metrics import Metrics


@attrs.frozen(kw_only=True)
class Config:
    """What is drawn, and how often."""

    reward: str = "reward/mean"
    """Metric of the training curve."""
    heldout: str = "mean"
    """Metric of an evaluation that becomes a point: `evaluate/<name>/<this>`."""
    every: int = attrs.field(default=10, validator=attrs.validators.ge(1))
    """Steps between two drawings; the last one is made when the run closes."""


class Plot:
    """Draws `reward.png`; takes about 0.2 seconds each time."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._path = folder / "reward.png"
        self._title = ""
        self._reward = Curve(config.reward)
        self._heldout: dict[str, Curve] = {}
        self._drawn = True

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self._title = title
        if first_step > 0:
            curves = [curve.up_to(first_step) for curve in read(self._path)]
            self._reward = next((c for c in curves if c.name == self._config.reward), self._reward)
            self._heldout = {c.name: c for c in curves if c.name != self._config.reward}

    def report(self, step: int, metrics: Metrics) -> None:
        split = split_evaluations(metrics)
        value = split.training.get(self._config.reward)
        if value is not None and math.isfinite(value):
            self._reward = self._reward.with_point(step, value)
            self._drawn = False
        for data, numbers in split.evaluations.items():
            if self._config.heldout in numbers:
                name = f"{data}: {self._config.heldout}"
                curve = self._heldout.get(name, Curve(name))
                self._heldout[name] = curve.with_point(step, numbers[self._config.heldout])
                self._drawn = False
        if step % self._config.every == 0 and value is not None:
            self._draw()

    def samples(self, samples: Sequence[Sample]) -> None:
        pass

    def progress(self, done: int, wanted: int, what: str) -> None:
        pass

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if not self._drawn:
            heldout = list(self._heldout.values())
            draw(self._path, title=self._title, reward=self._reward, heldout=heldout)
            self._drawn = True


def build(config: Config, *, folder: Path, console: object = None) -> Tracker:
    """A tracker that draws into `folder`. Raises: MissingExtra: matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401  so that a missing one is known before the run begins
    except ModuleNotFoundError as error:
        raise MissingExtra("trackers/plot needs matplotlib: pip install 'hexpo[demo]'") from error
    return Quiet(Plot(config, folder), name="plot")
