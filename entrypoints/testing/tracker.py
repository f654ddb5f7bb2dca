"""The contract of the Tracker port: parametrise a test over `CONTRACT`.

@pytest.mark.parametrize("check", CONTRACT)
def test_tracker(check: Check, tmp_path: Path) -> None:
    check(lambda: my_tracker(tmp_path))
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import mean_of, total

Open = Callable[[], Tracker]
"""Gives a tracker of the same run each time, as a resumed process would."""
Check = Callable[[Open], None]
"""Raises where a tracker breaks the contract; a tracker never raises by itself."""


def sample(step: int, number: int = 0, *, phase: str = "train") -> Sample:
    """A record with everything that is odd and allowed: every other one is not scored, and a
    grader's message may hold half a surrogate pair."""
    return Sample(
        step=step,
        phase=phase,
        id=number,
        group=0,
        prompt_id="rows:1",
        prompt="What is 3 + 4?",
        answer="[bold]7",
        score=None if number % 2 else 1.0,
        failure="raised: \ud83d" if number % 2 else "",
        tokens=(1, 2, 3),
        logprobs=(0.0, -0.5, float("nan")),
        versions=(0, 0, 1),
        extra={"path": Path("somewhere"), "\ud83d": "\ud83d"},
    )


def report(tracker: Tracker, *, first_step: int = 0, steps: int = 3) -> None:
    """What a run says between `begin` and `close`."""
    tracker.begin(title="addition", steps=steps, first_step=first_step)
    for step in range(first_step + 1, steps + 1):
        tracker.progress(1, 2, "generating")
        tracker.samples([sample(step, 0), sample(step, 1)])
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
    tracker.samples([sample(steps, phase="evaluate/held-out")])


def a_run_of_odd_values_is_taken(open_tracker: Open) -> None:
    """A mean of nothing, NaN, no score, markup and unknown types are ordinary; close is safe
    twice."""
    tracker = open_tracker()
    report(tracker)
    tracker.close()
    tracker.close()


def a_resumed_run_is_taken(open_tracker: Open) -> None:
    """The same steps again, by another process, once more and once less far."""
    for first_step in (0, 2, 2, 1):
        tracker = open_tracker()
        report(tracker, first_step=first_step)
        tracker.close()


def closing_what_never_began_is_safe(open_tracker: Open) -> None:
    """A run may fail before its first step."""
    tracker = open_tracker()
    tracker.close()
    tracker.close()


CONTRACT: tuple[Check, ...] = (
    a_run_of_odd_values_is_taken,
    a_resumed_run_is_taken,
    closing_what_never_began_is_safe,
)
"""Every check."""
