"""How many groups may be alive."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule import plan
from hexpo.domain.schedule.capacity import balanced_window, cut_evenly, largest_window, worst_age


@given(
    groups=st.integers(1, 40),
    staleness=st.one_of(st.integers(0, 5), st.floats(0, 5)),
    window=st.integers(1, 100),
)
def test_an_accepted_window_keeps_the_bound_and_a_refused_one_cannot(
    groups: int, staleness: float, window: int
) -> None:
    """O26, F1."""
    widest = largest_window(groups=groups, max_staleness=staleness)
    try:
        made = plan(groups=groups, max_staleness=staleness, window=window)
    except WrongValue:
        plan(groups=groups, max_staleness=staleness, window=widest)
        refused = True
    else:
        refused = False
        worst = worst_age(groups=groups, capacity=made.capacity, window=window)
        assert worst <= made.max_age == math.ceil(staleness)
        assert groups <= made.capacity <= (1 + staleness) * groups + 1e-6
    ageing = plan(groups=groups, max_staleness=staleness, window=None).capacity > groups
    assert refused == (ageing and window > widest)


@pytest.mark.parametrize(
    ("groups", "staleness", "window", "capacity"),
    [
        (4, 0, 1, 4),
        (4, 1, 1, 8),
        (4, 2, 1, 12),
        (512, 0.5, 1, 768),
        (10, 0.1, 1, 11),
        (100, 0.29, 1, 129),
        (4, 1, 3, 6),  # lowered: (6 + 3 - 2) // 4 = 1
        (4, 0.5, 3, 6),
        (3, 4, 5, 11),
        (8, 1, None, 16),
        (4, 0, 7, 4),
    ],
)
def test_capacity_follows_from_staleness_and_window(
    groups: int, staleness: float, window: int | None, capacity: int
) -> None:
    """O26: B = floor((S + 1) P), lowered for a window."""
    assert plan(groups=groups, max_staleness=staleness, window=window).capacity == capacity


def test_a_window_that_breaks_the_bound_is_refused_with_the_widest_that_fits() -> None:
    """O26."""
    with pytest.raises(WrongValue, match="largest window that fits is 4"):
        plan(groups=4, max_staleness=1, window=5)
    assert plan(groups=4, max_staleness=1, window=4).capacity == 5
    with pytest.raises(WrongValue, match="largest window that fits is 96"):
        plan(groups=32, max_staleness=3, window=97)
    assert plan(groups=32, max_staleness=3, window=96).capacity == 33


@given(groups=st.integers(1, 40), staleness=st.one_of(st.integers(0, 5), st.floats(0, 5)))
def test_a_balanced_window_is_the_widest_that_leaves_as_many_alive(
    groups: int, staleness: float
) -> None:
    """Of the windows that `plan` accepts, those up to it are at most as wide as what is alive."""
    balanced = balanced_window(groups=groups, max_staleness=staleness)
    for window in range(1, largest_window(groups=groups, max_staleness=staleness) + 1):
        alive = plan(groups=groups, max_staleness=staleness, window=window).capacity
        assert (window <= alive) == (window <= balanced)


def test_a_wider_window_keeps_fewer_alive() -> None:
    """O26: 32 groups a publication, at most 3 versions old."""
    alive = {w: plan(groups=32, max_staleness=3, window=w).capacity for w in (1, 64, 76, 96)}
    assert alive == {1: 128, 64: 65, 76: 53, 96: 33}
    assert balanced_window(groups=32, max_staleness=3) == 64


@pytest.mark.parametrize(
    ("groups", "staleness", "window", "message"),
    [
        (0, 1, 1, "trains nothing"),
        (1, -0.5, 1, "must be 0 or more"),
        (1, math.nan, 1, "must be 0 or more"),
        (1, math.inf, 1, "finite"),
        (1, 1, 0, "lets no group through"),
    ],
)
def test_senseless_settings_are_refused(
    groups: int, staleness: float, window: int, message: str
) -> None:
    """M4."""
    with pytest.raises(WrongValue, match=message):
        plan(groups=groups, max_staleness=staleness, window=window)


@given(groups=st.integers(0, 40), parts=st.integers(0, 9))
def test_groups_are_cut_into_parts_that_differ_by_one_at_most(groups: int, parts: int) -> None:
    """A1: each group is in one optimizer step, the larger steps come first, none is empty."""
    sizes = cut_evenly(groups, parts)
    assert sum(sizes) == groups
    assert len(sizes) == max(1, min(parts, groups))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
