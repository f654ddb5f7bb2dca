"""Prompts by their pass rates: who is asked again, and that a checkpoint finds each one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.prompts.wire.order import OrderedRows
from hexpo.application.curriculum import Band, Curriculum
from hexpo.domain.metrics import values
from hexpo.domain.trajectory import Cause, Failed, Graded, Group, Message, Prompt, Scored, Ticket

NAMES = ("a", "b", "c", "d")


def source() -> OrderedRows:
    rows = [Prompt(id=name, messages=(Message("user", name),)) for name in NAMES]
    return OrderedRows(rows, seed=3, shuffle=True, what="rows")


def curriculum(rates: Mapping[str, float] | None = None, **band: float) -> Curriculum:
    made = Curriculum(source(), Band(**{"revisit": 0.0, **band}))  # type: ignore[arg-type]
    made.restore(rates or {})
    return made


def group(name: str, *scores: float | None) -> Group:
    prompt = Prompt(id=name, messages=())
    rows = tuple(
        Graded(
            trajectory=None,  # type: ignore[arg-type]
            outcome=Failed(cause=Cause.RAISED, message="") if one is None else Scored(value=one),
        )
        for one in scores
    )
    return Group(ticket=Ticket(number=0, prompt=prompt, version=0, samples=4), rows=rows)


def test_a_wide_band_draws_what_the_source_draws() -> None:
    """Curriculum: nothing is passed over, whatever the rates."""
    made, plain = curriculum({"a": 1.0, "b": 0.0}), source()
    assert [made.draw().id for _ in range(12)] == [plain.draw().id for _ in range(12)]
    assert values(made.metrics())["curriculum/left_out"] == 0


def test_prompts_outside_the_band_are_passed_over_and_unknown_ones_asked() -> None:
    """Curriculum: solved always and never, here."""
    made = curriculum({"a": 1.0, "b": 0.05, "c": 0.5}, hardest=0.1, easiest=0.9)
    assert {made.draw().id for _ in range(12)} == {"c", "d"}
    measured = values(made.metrics())
    assert measured["curriculum/left_out"] >= 10
    assert measured["curriculum/pass_rate"] == pytest.approx(1.55 / 3)


def test_where_all_are_outside_the_next_one_is_asked_all_the_same() -> None:
    """K7: no endless search."""
    made = curriculum(dict.fromkeys(NAMES, 1.0), easiest=0.9)
    assert {made.draw().id for _ in range(4)} <= set(NAMES)
    assert values(made.metrics())["curriculum/left_out"] == 16


def test_one_outside_is_asked_in_some_epochs() -> None:
    """Its rate can only change if it is asked."""
    made = curriculum({"a": 1.0}, easiest=0.9, revisit=0.25)
    drawn = [made.draw().id for _ in range(1300)]
    assert 0.15 < drawn.count("a") / drawn.count("b") < 0.35


def test_rates_run_over_scored_answers() -> None:
    """Curriculum: 0.5, then 0.7 x 0.5 + 0.3 x 1; what failed says nothing."""
    made = curriculum()
    made.learn(group("a", 1.0, 0.0, None))
    made.learn(group("b", None))
    assert made.rates == {"a": 0.5}
    made.learn(group("a", 1.0, 1.0))
    assert made.rates == {"a": pytest.approx(0.65)}


@given(st.data())
def test_a_position_finds_its_prompt_again_whatever_the_rates_became(data: st.DataObject) -> None:
    """H1, F: what was in flight at a save is issued again; then it goes on as it would have."""
    rates = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.5, 1.0]))
    made = curriculum(data.draw(rates), hardest=0.1, easiest=0.9)
    for _ in range(data.draw(st.integers(0, 6))):
        made.draw()
    position = made.position
    drawn = made.draw().id
    here, held = made.position, dict(made.rates)
    again = curriculum(data.draw(rates), hardest=0.1, easiest=0.9)
    again.seek(position)
    assert again.draw().id == drawn
    again.restore(held)
    again.seek(here)
    assert [again.draw().id for _ in range(8)] == [made.draw().id for _ in range(8)]
