"""What every tracker promises."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hexpo.adapters.trackers import console, jsonl, plot, tensorboard
from hexpo.adapters.trackers.wire import FanOut
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import mean_of, total

Open = Callable[[Path], Tracker]


def _console(folder: Path, *, terminal: bool = False) -> Tracker:
    screen = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    return console.build(console.Config(), folder=folder, console=screen)


OPENERS: dict[str, Open] = {
    "console": _console,
    "console-live": lambda folder: _console(folder, terminal=True),
    "jsonl": lambda folder: jsonl.build(jsonl.Config(), folder=folder),
    "tensorboard": lambda folder: tensorboard.build(tensorboard.Config(), folder=folder),
    "plot": lambda folder: plot.build(plot.Config(every=1), folder=folder),
    "fan-out": lambda folder: FanOut(
        [jsonl.build(jsonl.Config(), folder=folder), plot.build(plot.Config(), folder=folder)]
    ),
}


@pytest.fixture(params=OPENERS, ids=str)
def open_tracker(request: pytest.FixtureRequest) -> Open:
    return OPENERS[request.param]


def _sample(step: int, number: int = 0, *, phase: str = "train") -> Sample:
    return Sample(
        step=step,
        phase=phase,
        id=number,
        group=0,
        prompt_id="rows:1",
        prompt="What is 3 + 4?",
        answer="[bold]7",
        score=None if number % 2 else 1.0,
        failure="timed out" if number % 2 else "",
        tokens=(1, 2, 3),
        logprobs=(0.0, -0.5, float("nan")),
        versions=(0, 0, 1),
        extra={"path": Path("somewhere")},
    )


def _run(tracker: Tracker, *, first_step: int = 0, steps: int = 3) -> None:
    tracker.begin(title="addition", steps=steps, first_step=first_step)
    for step in range(first_step + 1, steps + 1):
        tracker.progress(1, 2, "generating")
        tracker.samples([_sample(step, 0), _sample(step, 1)])
        tracker.report(
            step,
            {
                "reward/mean": mean_of(step / 2, 1),
                "reward/nothing": mean_of(0, 0),
                "loss/value": mean_of(float("nan"), 1),
                "tokens/generated": total(1000),
                "time/step": total(0.5),
            },
        )
    tracker.report(steps, {"evaluate/held-out/accuracy": mean_of(steps / 10, 1)})
    tracker.samples([_sample(steps, phase="evaluate/held-out")])


def test_a_run_of_odd_values_is_taken_without_a_word(
    open_tracker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mean of nothing, NaN, no score, markup and unknown types are ordinary (N3)."""
    tracker = open_tracker(tmp_path)
    _run(tracker)
    tracker.close()
    tracker.close()
    assert not caplog.records


def test_a_resumed_run_is_taken_without_a_word(
    open_tracker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H5: the same steps again, by another process."""
    for first_step in (0, 2, 2):
        tracker = open_tracker(tmp_path)
        _run(tracker, first_step=first_step)
        tracker.close()
    assert not caplog.records


def test_nothing_is_written_before_the_run_begins(open_tracker: Open, tmp_path: Path) -> None:
    """Building has no effect; closing what never began neither."""
    tracker = open_tracker(tmp_path / "run")
    tracker.close()
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_write_is_logged_once_and_harms_nobody(
    open_tracker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracker never fails a run."""
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    tracker = open_tracker(blocked)
    with caplog.at_level(logging.ERROR):
        _run(tracker)
        tracker.close()
    names = [record.getMessage().split()[1] for record in caplog.records]
    assert len(names) == len(set(names)), "a tracker spoke twice"
    assert blocked.read_text() == "in the way"
