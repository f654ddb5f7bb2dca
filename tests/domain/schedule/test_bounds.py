"""Floors of the step time."""

from __future__ import annotations

import pytest

from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule.bounds import Floors, bubble, little


def test_littles_floor_is_the_stay_over_staleness_and_one() -> None:
    """P 4, S 0.5: 6 groups alive, each for 30 s, give 4 groups every 20 s at best."""
    assert little(stay_seconds=30.0, capacity=6, groups=4) == pytest.approx(30.0 / 1.5)
    with pytest.raises(WrongValue, match="capacity"):
        little(stay_seconds=1.0, capacity=3, groups=4)


def test_a_bubble_is_a_share_and_defined_when_nothing_was_waited_for() -> None:
    """R3."""
    assert bubble(step_seconds=10.0, busy_seconds=9.5) == pytest.approx(0.05)
    assert bubble(step_seconds=10.0, busy_seconds=10.1) == 0.0
    assert bubble(step_seconds=0.0, busy_seconds=0.0) == 0.0


def test_the_highest_floor_is_the_one_to_compare_with() -> None:
    """Both busy times and Little's law hold at once."""
    floors = Floors(generation=3.0, training=5.0, little=4.0)
    assert (floors.busy, floors.highest) == (5.0, 5.0)
    assert Floors(generation=3.0, training=5.0, little=7.0).highest == 7.0


def test_a_publication_may_be_one_group_and_a_bubble_ends_at_one() -> None:
    """B = P = 1 is synchronous: a step takes the whole stay."""
    assert little(stay_seconds=7.0, capacity=1, groups=1) == 7.0
    with pytest.raises(WrongValue, match="capacity"):
        little(stay_seconds=1.0, capacity=1, groups=0)
    assert bubble(step_seconds=0.5, busy_seconds=0.0) == 1.0
    assert bubble(step_seconds=0.5, busy_seconds=0.125) == 0.75
