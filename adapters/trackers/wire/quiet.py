"""A tracker whose failure is logged once and harms nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import Metrics

_log = logging.getLogger(__name__)


class Quiet:
    """Keeps the port's promise for any tracker: it never fails a run.

    The first error is logged with its traceback; from then on only `close` reaches the tracker,
    once, so that it may free what it holds.
    """

    def __init__(self, tracker: Tracker, *, name: str) -> None:
        self._tracker = tracker
        self._name = name
        self._failed = False
        self._closed = False

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self._attempt(lambda: self._tracker.begin(title=title, steps=steps, first_step=first_step))

    def report(self, step: int, metrics: Metrics) -> None:
        self._attempt(lambda: self._tracker.report(step, metrics))

    def samples(self, samples: Sequence[Sample]) -> None:
        self._attempt(lambda: self._tracker.samples(samples))

    def progress(self, done: int, wanted: int, what: str) -> None:
        self._attempt(lambda: self._tracker.progress(done, wanted, what))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call(self._tracker.close)

    def _attempt(self, call: Callable[[], None]) -> None:
        if not self._failed and not self._closed:
            self._call(call)

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001  the one place where a tracker's failure becomes a log line
            if not self._failed:
                _log.exception("tracker %s failed and is left out; the run goes on", self._name)
            self._failed = True
