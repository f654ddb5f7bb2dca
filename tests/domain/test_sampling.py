"""Sampling settings and their ranges."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hexpo.domain.errors import WrongValue
from hexpo.domain.sampling import Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.5),
        ("min_p", -0.5),
        ("min_new_tokens", -1),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    """M4, O21.4."""
    settings: dict[str, Any] = {name: value}
    with pytest.raises(WrongValue, match=rf"sampling\.{name} is {value}; it must lie in"):
        Sampling(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 1},
        {"temperature": 0.0},
        {"top_p": 1e-9},
        {"top_p": 1.0, "min_p": 0.0, "top_k": 0},
    ],
)
def test_the_ends_of_the_ranges_are_legal(settings: dict[str, Any]) -> None:
    """M4: temperature 0 is greedy."""
    made = Sampling(**settings)
    assert all(getattr(made, name) == value for name, value in settings.items())


def test_only_filters_cut_the_support() -> None:
    """C2: temperature alone leaves every token possible."""
    assert not Sampling(temperature=0.3).filters
    for settings in ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        cut: dict[str, Any] = settings
        assert Sampling(**cut).filters


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [
        ("max_new_tokens", 2**31, 2**31 + 1),
        ("min_new_tokens", 2**31, 2**31 + 1),
        ("top_k", 2**31, 2**31 + 1),
        ("temperature", 100.0, 100.5),
        ("top_p", 1.0, 1.5),
        ("min_p", 1.0, 1.5),
    ],
)
def test_the_upper_end_of_a_range_is_legal_and_no_more(
    name: str, largest: float, beyond: float
) -> None:
    """M4."""
    settings: dict[str, Any] = {name: largest}
    assert getattr(Sampling(**settings), name) == largest
    settings[name] = beyond
    with pytest.raises(WrongValue, match=name):
        Sampling(**settings)


def test_the_defaults_draw_from_the_whole_distribution() -> None:
    """What a run that names nothing samples with."""
    assert Sampling() == Sampling(
        max_new_tokens=64, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, min_new_tokens=0
    )
