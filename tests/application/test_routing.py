"""Whom a request goes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexpo.application.routing import LeastLoaded


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 9))
def test_a_member_has_room_while_it_has_little_more_to_do_than_the_least_loaded(
    loads: list[int], slack: int
) -> None:
    """Constant time, and equal to looking at everybody."""
    table: LeastLoaded[int] = LeastLoaded()
    for member, load in enumerate(loads):
        table.enter(member)
        table.place(member, load)
    for member, load in enumerate(loads):
        assert table.has_room(member, slack=slack) == (load - min(loads) <= slack)
    assert not table.has_room(len(loads), slack=slack)
