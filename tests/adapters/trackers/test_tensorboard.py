"""Event files for TensorBoard."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hexpo.adapters.trackers import tensorboard
from hexpo.domain.errors import MissingExtra
from hexpo.domain.metrics import latest

pytest.importorskip("tensorboard", reason="extra trackers")


def _run(folder: Path, first_step: int, last: int, offset: float) -> None:
    tracker = tensorboard.build(tensorboard.Config(), folder=folder)
    tracker.begin(title="addition", steps=last, first_step=first_step)
    for step in range(first_step + 1, last + 1):
        tracker.report(step, {"reward/mean": latest(step + offset)})
    tracker.close()


def test_a_resumed_run_hides_what_came_after_its_step(tmp_path: Path) -> None:
    """H5: steps 3 and 4 of the killed process are purged, 1 and 2 stay."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _run(tmp_path, 0, 4, 0.25)
    _run(tmp_path, 2, 5, 0.5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert points == [(1, 1.25), (2, 2.25), (3, 3.5), (4, 4.5), (5, 5.5)]


def test_a_missing_tensorboard_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2."""
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"hexpo\[trackers\]"):
        tensorboard.build(tensorboard.Config(), folder=tmp_path)
