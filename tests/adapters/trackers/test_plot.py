"""The picture of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hexpo.adapters.trackers import plot
from hexpo.adapters.trackers.plot.curve import Curve, read
from hexpo.domain.errors import MissingExtra
from hexpo.domain.metrics import latest, mean_of

pytest.importorskip("matplotlib", reason="extra demo")


def _run(folder: Path, first_step: int, last: int, *, every: int = 100) -> None:
    tracker = plot.build(plot.Config(every=every), folder=folder)
    tracker.begin(title="addition", steps=last, first_step=first_step)
    for step in range(first_step + 1, last + 1):
        tracker.report(step, {"reward/mean": latest(step / 8), "reward/none": mean_of(0, 0)})
    tracker.report(last, {"evaluate/held-out/mean": latest(last / 16)})
    tracker.close()


def test_a_resumed_run_draws_on(tmp_path: Path) -> None:
    """The picture carries its points; those after the resumed step are drawn anew (H5)."""
    _run(tmp_path, 0, 4)
    _run(tmp_path, 2, 6)
    assert read(tmp_path / "reward.png") == [
        Curve("reward/mean", tuple((step, step / 8) for step in range(1, 7))),
        Curve("held-out: mean", ((6, 6 / 16),)),
    ]


def test_a_resume_at_an_evaluated_step_keeps_its_point(tmp_path: Path) -> None:
    """H5."""
    _run(tmp_path, 0, 4)
    _run(tmp_path, 4, 5)
    assert read(tmp_path / "reward.png")[1].points == ((4, 4 / 16), (5, 5 / 16))


def test_the_picture_has_colours_and_no_unfinished_neighbour(tmp_path: Path) -> None:
    """Written whole, in one step."""
    from PIL import Image

    _run(tmp_path, 0, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["reward.png"]
    with Image.open(tmp_path / "reward.png") as image:
        colours = image.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 10


def test_it_is_drawn_every_few_steps_and_at_the_end(tmp_path: Path) -> None:
    """A killed run has a picture of its first steps."""
    tracker = plot.build(plot.Config(every=2), folder=tmp_path)
    tracker.begin(title="run", steps=9, first_step=0)
    drawn = []
    for step in (1, 2, 3):
        tracker.report(step, {"reward/mean": latest(0.5)})
        drawn.append(len(read(tmp_path / "reward.png")[0].points) if step > 1 else 0)
    tracker.close()
    assert drawn == [0, 2, 2]
    assert len(read(tmp_path / "reward.png")[0].points) == 3


def test_a_run_without_a_number_draws_nothing(tmp_path: Path) -> None:
    """A NaN is no point either."""
    tracker = plot.build(plot.Config(every=1), folder=tmp_path)
    tracker.begin(title="run", steps=9, first_step=0)
    tracker.report(1, {"reward/mean": latest(float("nan"))})
    tracker.close()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_matplotlib_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q2."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"hexpo\[demo\]"):
        plot.build(plot.Config(), folder=tmp_path)
