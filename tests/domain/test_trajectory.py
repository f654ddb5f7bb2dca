"""What a rollout yields."""

from __future__ import annotations

from hexpo.domain.trajectory import StopReason


def test_the_numbers_of_stop_reasons_never_change() -> None:
    """They are a column of every stored batch: a checkpoint outlives the version that wrote it."""
    assert {reason.name: reason.value for reason in StopReason} == {
        "STOP": 0,
        "LENGTH": 1,
        "ABORTED": 2,
        "TIMEOUT": 3,
        "FAILED": 4,
    }
