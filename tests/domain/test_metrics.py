"""Reductions: laws that make a value independent of how it was split."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import (
    Measure,
    Reduction,
    largest,
    latest,
    mean_of,
    merge,
    smallest,
    total,
    values,
)

numbers = st.integers(-(2**20), 2**20).map(float)  # exact sums, so that laws hold exactly
MAKERS = {
    Reduction.SUM: total,
    Reduction.MAX: largest,
    Reduction.MIN: smallest,
    Reduction.LAST: latest,
}


@st.composite
def measures(draw: st.DrawFn, reduction: Reduction) -> Measure:
    if reduction is Reduction.MEAN:
        return mean_of(draw(numbers), draw(st.integers(0, 9)))
    return MAKERS[reduction](draw(numbers))


def joined(*parts: Measure) -> Measure:
    return merge({"x": part} for part in parts)["x"]


@pytest.mark.parametrize("reduction", Reduction)
@given(data=st.data())
def test_every_reduction_is_associative(reduction: Reduction, data: st.DataObject) -> None:
    """N1."""
    a, b, c = (data.draw(measures(reduction)) for _ in range(3))
    assert joined(joined(a, b), c) == joined(a, joined(b, c)) == joined(a, b, c)


@pytest.mark.parametrize("reduction", [each for each in Reduction if each is not Reduction.LAST])
@given(data=st.data())
def test_every_reduction_but_the_last_one_commutes(
    reduction: Reduction, data: st.DataObject
) -> None:
    """N1: ranks report in any order; the later report wins only where that is meant."""
    a, b = (data.draw(measures(reduction)) for _ in range(2))
    assert joined(a, b) == joined(b, a)


@given(items=st.lists(numbers, min_size=1), cuts=st.lists(st.integers(0, 30)))
def test_no_split_into_micro_batches_changes_a_value(items: list[float], cuts: list[int]) -> None:
    """N1: empty micro-batches included; they weigh nothing."""
    edges = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
    parts = [items[a:b] for a, b in itertools.pairwise(edges)]
    merged = values(
        merge(
            {"mean": mean_of(sum(part), len(part)), "sum": total(sum(part))}
            | ({"max": largest(max(part)), "min": smallest(min(part))} if part else {})
            for part in parts
        )
    )
    assert merged["mean"] == pytest.approx(sum(items) / len(items))
    assert (merged["sum"], merged["max"], merged["min"]) == (sum(items), max(items), min(items))


def test_merging_takes_the_union_of_names_and_keeps_order() -> None:
    """N3."""
    merged = merge([{"a": total(1)}, {"b": latest(2)}, {"a": total(3), "b": latest(5)}])
    assert list(merged) == ["a", "b"]
    assert values(merged) == {"a": 4, "b": 5}
    assert merge([]) == {}


def test_one_name_with_two_reductions_is_refused() -> None:
    """N1."""
    with pytest.raises(WrongValue, match="'loss' is reported as sum and as mean"):
        merge([{"loss": total(1.0)}, {"loss": mean_of(1.0, 1)}])


def test_the_mean_of_nothing_is_left_out() -> None:
    """N2: neither 0 nor NaN stands for an absent number."""
    assert mean_of(0.0, 0).value is None
    assert values({"a": mean_of(0.0, 0), "b": total(0.0)}) == {"b": 0.0}


def test_measures_survive_pickle() -> None:
    """They cross processes."""
    assert pickle.loads(pickle.dumps(mean_of(3.0, 2))) == mean_of(3.0, 2)
