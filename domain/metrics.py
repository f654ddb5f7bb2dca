"""Metrics with a declared reduction, so that no split into parts changes a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import attrs

from hexpo.domain.errors import WrongValue


class Reduction(Enum):
    """How two measures of one name become one."""

    MEAN = "mean"
    """Weighted mean: totals add, weights add."""
    SUM = "sum"
    """Totals add."""
    MAX = "max"
    """The larger one."""
    MIN = "min"
    """The smaller one."""
    LAST = "last"
    """The later one (a learning rate, a version)."""


@attrs.frozen
class Measure:
    """One number on its way to being reduced. Build with `mean_of`, `total`, `latest`, ..."""

    reduction: Reduction
    total: float
    weight: float = 1.0
    """For MEAN: how many items `total` sums. 0 is legal: an empty micro-batch weighs nothing."""

    @property
    def value(self) -> float | None:
        """The reduced number; None for the mean of nothing."""
        if self.reduction is not Reduction.MEAN:
            return self.total
        return self.total / self.weight if self.weight else None


Metrics = Mapping[str, Measure]
"""Names are paths: `train/entropy`, `reward/mean`, `time/generate`."""


def mean_of(total: float, weight: float) -> Measure:
    """A mean given as the sum over `weight` items."""
    return Measure(Reduction.MEAN, total, weight)


def total(value: float) -> Measure:
    """A count or an amount: parts add."""
    return Measure(Reduction.SUM, value)


def largest(value: float) -> Measure:
    """A maximum."""
    return Measure(Reduction.MAX, value)


def smallest(value: float) -> Measure:
    """A minimum."""
    return Measure(Reduction.MIN, value)


def latest(value: float) -> Measure:
    """A value that simply is: the later report wins."""
    return Measure(Reduction.LAST, value)


def _join(name: str, a: Measure, b: Measure) -> Measure:
    if a.reduction is not b.reduction:
        raise WrongValue(
            f"metric {name!r} is reported as {a.reduction.value} and as {b.reduction.value};"
            " give the two different names"
        )
    match a.reduction:
        case Reduction.MEAN:
            return Measure(a.reduction, a.total + b.total, a.weight + b.weight)
        case Reduction.SUM:
            return Measure(a.reduction, a.total + b.total)
        case Reduction.MAX:
            return a if a.total >= b.total else b
        case Reduction.MIN:
            return a if a.total <= b.total else b
        case Reduction.LAST:
            return b


def merge(parts: Iterable[Metrics]) -> dict[str, Measure]:
    """The union of all parts; a name that several have is reduced as declared (N1, N3)."""
    merged: dict[str, Measure] = {}
    for part in parts:
        for name, measure in part.items():
            merged[name] = _join(name, merged[name], measure) if name in merged else measure
    return merged


def values(metrics: Metrics) -> dict[str, float]:
    """The reduced numbers; means of nothing are left out."""
    reduced = {name: measure.value for name, measure in metrics.items()}
    return {name: value for name, value in reduced.items() if value is not None}
