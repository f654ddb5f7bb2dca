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
from hexpo.application.ports.tracker import Tracker
from hexpo.entrypoints.testing.tracker import CONTRACT, Check, report

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


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_tracker_keeps_its_contract_without_a_word(
    check: Check, open_tracker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N3, H5: odd values, resumed runs and runs that never began are ordinary."""
    check(lambda: open_tracker(tmp_path))
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
        report(tracker)
        tracker.close()
    names = [record.getMessage().split()[1] for record in caplog.records]
    assert len(names) == len(set(names)), "a tracker spoke twice"
    assert blocked.read_text() == "in the way"
