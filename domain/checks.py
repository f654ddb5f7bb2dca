"""Checks of shapes, dtypes and ranges that many functions call first."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from torch import Tensor

from hexpo.domain.errors import WrongColumn, WrongValue

Member = TypeVar("Member", bound=Enum)


def one_of(kind: type[Member], value: Member | str) -> Member:
    """The member that a configuration names. Raises WrongValue with the names there are."""
    names = [str(member.value) for member in kind]
    if not isinstance(value, kind) and value not in names:
        raise WrongValue(f"{kind.__name__.lower()} {value!r} is none of {', '.join(names)}")
    return kind(value)


def require_same_axes(**columns: Tensor) -> None:
    """Raises WrongColumn unless all have one shape; names the two that differ."""
    (first, like), *others = columns.items()
    for name, column in others:
        if column.shape != like.shape:
            raise WrongColumn(
                f"{name} has the axes {tuple(column.shape)}, {first} has {tuple(like.shape)};"
                " give columns of the same selected rows"
            )


def require_floating(**columns: Tensor) -> None:
    """Raises WrongColumn for a column that is not floating point."""
    for name, column in columns.items():
        if not column.is_floating_point():
            raise WrongColumn(f"{name} is {column.dtype}; it must be floating point")


def require_at_least(bound: float, /, **options: float) -> None:
    """Raises WrongValue for an option below `bound`, or NaN."""
    for name, value in options.items():
        if not value >= bound:
            raise WrongValue(f"{name} is {value}; it must be at least {bound:g}")


def require_above(bound: float, /, **options: float) -> None:
    """Raises WrongValue for an option that is not larger than `bound`."""
    for name, value in options.items():
        if not value > bound:
            raise WrongValue(f"{name} is {value}; it must be larger than {bound:g}")


def require_within(low: float, high: float, /, **options: float) -> None:
    """Raises WrongValue for an option outside [low, high]."""
    for name, value in options.items():
        if not low <= value <= high:
            raise WrongValue(f"{name} is {value}; it must lie in {low:g} to {high:g}")


def require_inside(low: float, high: float, /, **options: float) -> None:
    """Raises WrongValue for an option outside the open interval ]low, high[."""
    for name, value in options.items():
        if not low < value < high:
            raise WrongValue(f"{name} is {value}; it must lie between {low:g} and {high:g}")
