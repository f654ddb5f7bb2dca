"""One tracker made of several."""

from __future__ import annotations

from collections.abc import Sequence

from hexpo.adapters.trackers.wire.quiet import Quiet
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import Metrics


class FanOut:
    """Tells every tracker everything, in their order; one that fails leaves the others as they are.

    None at all is fine: then nothing is kept.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(
            tracker if isinstance(tracker, Quiet) else Quiet(tracker, name=type(tracker).__name__)
            for tracker in trackers
        )

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        for tracker in self._trackers:
            tracker.begin(title=title, steps=steps, first_step=first_step)

    def report(self, step: int, metrics: Metrics) -> None:
        for tracker in self._trackers:
            tracker.report(step, metrics)

    def samples(self, samples: Sequence[Sample]) -> None:
        for tracker in self._trackers:
            tracker.samples(samples)

    def progress(self, done: int, wanted: int, what: str) -> None:
        for tracker in self._trackers:
            tracker.progress(done, wanted, what)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
