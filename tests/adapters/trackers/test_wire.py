"""Several trackers as one, and what becomes of one that fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from hexpo.adapters.trackers.wire import FanOut, Split, split_evaluations
from hexpo.application.ports.tracker import Sample
from hexpo.domain.metrics import Metrics, latest, mean_of


class Recorder:
    """Remembers its calls; fails in those named."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self._failing = failing

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self._failing:
            raise OSError(f"no room in {name}")

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self._called("begin")

    def report(self, step: int, metrics: Metrics) -> None:
        self._called(f"report {step}")

    def samples(self, samples: Sequence[Sample]) -> None:
        self._called("samples")

    def progress(self, done: int, wanted: int, what: str) -> None:
        self._called("progress")

    def close(self) -> None:
        self._called("close")


def _play(tracker: FanOut) -> None:
    tracker.begin(title="run", steps=2, first_step=0)
    tracker.report(1, {})
    tracker.samples([])
    tracker.progress(1, 2, "work")
    tracker.report(2, {})
    tracker.close()
    tracker.close()


EVERYTHING = ["begin", "report 1", "samples", "progress", "report 2", "close"]


@pytest.mark.parametrize("failing", EVERYTHING)
def test_one_failing_tracker_changes_nothing_for_the_others(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its failure is logged once, with the cause; it is closed all the same."""
    broken, sound = Recorder(failing, "close"), Recorder()
    with caplog.at_level(logging.ERROR):
        _play(FanOut([broken, sound]))
    assert sound.calls == EVERYTHING
    expected = EVERYTHING[: EVERYTHING.index(failing) + 1]
    assert broken.calls == expected + ([] if failing == "close" else ["close"])
    (record,) = caplog.records
    assert "Recorder" in record.getMessage()
    assert record.exc_info is not None
    assert "no room" in str(record.exc_info[1])


def test_an_interrupt_is_not_swallowed() -> None:
    """Only errors are a tracker's own."""

    class Interrupted(Recorder):
        def report(self, step: int, metrics: Metrics) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _play(FanOut([Interrupted()]))


def test_evaluations_are_told_apart_by_name() -> None:
    """`evaluate/<name>/<metric>`; the mean of nothing is left out."""
    metrics = {
        "reward/mean": latest(0.5),
        "reward/tool": mean_of(0.0, 0.0),
        "evaluate/held-out/pass@1": latest(0.25),
        "evaluate/gsm8k/accuracy": latest(0.75),
    }
    assert split_evaluations(metrics) == Split(
        {"reward/mean": 0.5}, {"held-out": {"pass@1": 0.25}, "gsm8k": {"accuracy": 0.75}}
    )
