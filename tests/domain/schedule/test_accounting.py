"""Counts of groups, and the metrics of a step."""

from __future__ import annotations

import pytest

from hexpo.domain.metrics import values
from hexpo.domain.schedule import Ledger, Reason
from hexpo.domain.schedule.accounting import measures, selection_bias

BEFORE = Ledger(
    issued=8, in_flight=2, requeued=1, ages=(3,), dropped={Reason.STALE: 2}, requeues=4, versions=3
)
NOW = Ledger(
    issued=14,
    in_flight=3,
    requeued=2,
    ages=(4, 2),
    dropped={Reason.STALE: 2, Reason.FAILED: 1},
    requeues=6,
    versions=5,
)


def test_a_step_reports_ages_drops_and_requeues() -> None:
    """O15.4: of this step, not of the run."""
    numbers = values(measures(NOW, BEFORE))
    assert numbers == {
        "schedule/issued": 6,
        "schedule/trained": 3,
        "schedule/requeued": 2,
        "schedule/dropped": 1,
        "schedule/alive": 5,
        "schedule/age": pytest.approx(2 / 3),
        "schedule/age_max": 1,
        "schedule/dropped/stale": 0,
        "schedule/dropped/failed": 1,
        "schedule/dropped/unscored": 0,
        "schedule/dropped/filtered": 0,
        "schedule/dropped/retried": 0,
        "schedule/dropped/cancelled": 0,
    }


def test_a_step_that_trained_nothing_has_no_age() -> None:
    """N2: no 0 stands for an absent number."""
    numbers = values(measures(NOW, NOW))
    assert "schedule/age" not in numbers
    assert "schedule/age_max" not in numbers


def test_a_ledger_that_lost_a_group_is_not_balanced() -> None:
    """F2."""
    assert NOW.balanced
    assert not Ledger(issued=2, in_flight=1).balanced
    assert not Ledger(issued=1, in_flight=1, dropped={Reason.STALE: 1}).balanced


def test_the_bias_is_the_share_and_the_seconds_of_what_was_dropped() -> None:
    """F3, X3."""
    numbers = values(selection_bias([1.0, 2.0, 3.0], [10.0]))
    assert numbers == {
        "bias/dropped_share": 0.25,
        "bias/trained_seconds": 2,
        "bias/dropped_seconds": 10,
    }
    assert values(selection_bias([1.0], [])) == {
        "bias/dropped_share": 0,
        "bias/trained_seconds": 1,
    }


def test_what_happened_between_two_moments_is_a_difference() -> None:
    """O15.4: publications and requeues too."""
    since = NOW.since(BEFORE)
    assert (since.versions, since.requeues, since.issued, since.ages) == (2, 2, 6, (1, 2))
