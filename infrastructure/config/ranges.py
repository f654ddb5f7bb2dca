"""Validators that refuse a value outside its meaningful range, and say the range (M4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from hexpo.domain.errors import WrongValue

Check = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def within(
    low: float, high: float = float("inf"), *, open_low: bool = False, open_high: bool = False
) -> Check:
    """A number in [low, high]; `open_low` and `open_high` leave the ends out. None passes."""
    left = "(" if open_low else "["
    right = ")" if open_high or high == float("inf") else "]"
    wanted = f"{left}{low:g}, {high:g}{right}"

    def check(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        below = value <= low if open_low else value < low
        above = value >= high if open_high else value > high
        if below or above or value != value:
            raise WrongValue(f"{value} is out of range: it must lie in {wanted}")

    return check


def not_empty(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    """A text or sequence with something in it."""
    if not value:
        raise WrongValue("it must not be empty")
