"""What a person sees of a run."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from hexpo.adapters.trackers import console
from hexpo.adapters.trackers.console import view
from hexpo.application.ports.tracker import Sample
from hexpo.domain.metrics import latest, total


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _sample() -> Sample:
    return Sample(
        step=1, phase="train", id=0, group=0, prompt_id="r", prompt="What is [3]\n+ 4?",
        answer="It is\n[red]7", score=1.0,
    )  # fmt: skip


def _screen(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, color_system=None), file


def test_without_a_terminal_each_step_is_one_line(tmp_path: Path) -> None:
    """Numbers, rate and time left; 2 of 4 steps in 10 s leave 10 s."""
    screen, file = _screen(terminal=False)
    clock = Clock()
    tracker = console.build(console.Config(), folder=tmp_path, console=screen, clock=clock)
    tracker.begin(title="addition", steps=4, first_step=0)
    for step in (1, 2):
        clock.now += 5.0
        tracker.progress(3, 8, "generating")
        tracker.report(
            step,
            {
                "reward/mean": latest(0.4125),
                "tokens/generated": total(6000),
                "time/step": total(5.0),
            },
        )
    tracker.close()
    assert file.getvalue().splitlines() == [
        "addition: steps 1 to 4",
        "step 1/4  reward 0.412  tokens/s 1,200  15 s left",
        "step 2/4  reward 0.412  tokens/s 1,200  10 s left",
    ]


def test_a_run_that_is_resumed_after_its_last_step_says_so(tmp_path: Path) -> None:
    """Not `steps 5 to 4`."""
    screen, file = _screen(terminal=False)
    tracker = console.build(console.Config(), folder=tmp_path, console=screen, clock=Clock())
    tracker.begin(title="training", steps=4, first_step=4)
    tracker.close()
    assert file.getvalue() == "training: all 4 steps are done; run.steps=N asks for more\n"


def test_time_left_counts_the_steps_of_this_process_only(tmp_path: Path) -> None:
    """A run resumed at step 90 does not think that 90 steps took no time."""
    screen, file = _screen(terminal=False)
    clock = Clock()
    tracker = console.build(console.Config(), folder=tmp_path, console=screen, clock=clock)
    tracker.begin(title="run", steps=100, first_step=90)
    clock.now = 60.0
    tracker.report(91, {"reward/mean": latest(1.0)})
    assert "9:00 left" in file.getvalue()


def test_an_evaluation_is_a_table_with_what_changed(tmp_path: Path) -> None:
    """The second one says by how much."""
    screen, file = _screen(terminal=False)
    tracker = console.build(console.Config(), folder=tmp_path, console=screen)
    tracker.begin(title="run", steps=4, first_step=0)
    tracker.report(0, {"evaluate/held-out/accuracy": latest(0.25)})
    tracker.report(4, {"evaluate/held-out/accuracy": latest(0.75)})
    text = file.getvalue()
    assert "held-out at step 0" in text
    assert "change" not in text.partition("step 4")[0]
    assert "+0.5" in text.partition("step 4")[2]


def test_the_last_answer_is_one_line_whatever_it_contains(tmp_path: Path) -> None:
    """Markup and line ends of a model's answer change nothing on the screen."""
    screen, file = _screen(terminal=False)
    tracker = console.build(console.Config(), folder=tmp_path, console=screen)
    tracker.begin(title="run", steps=4, first_step=0)
    tracker.samples([_sample()])
    assert file.getvalue().splitlines()[-1] == "  What is [3] + 4? -> It is [red]7 (1)"


def test_a_terminal_shows_bar_numbers_work_and_answer(tmp_path: Path) -> None:
    """The live view's last frame."""
    screen, file = _screen(terminal=True)
    tracker = console.build(console.Config(), folder=tmp_path, console=screen)
    tracker.begin(title="addition", steps=4, first_step=0)
    tracker.samples([_sample()])
    tracker.report(2, {"reward/mean": latest(0.5), "answer/length": latest(8.25)})
    tracker.progress(3, 8, "generating")
    tracker.close()
    frame = file.getvalue()
    for part in ("addition", "2/4", "reward 0.5", "length 8.25", "[red]7"):
        assert part in frame


def test_numbers_and_durations_are_short() -> None:
    """What a person reads at a glance."""
    assert [view.number(x) for x in (0.41234, 1234.5, 2.1e-05, 0.0)] == [
        "0.412",
        "1,234",
        "2.1e-05",
        "0",
    ]
    assert [view.duration(x) for x in (4.4, 65, 3725)] == ["4 s", "1:05", "1:02:05"]
