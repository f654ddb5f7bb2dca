"""Every named algorithm in one listing, made from the catalogues and their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs

from hexpo.domain.advantages.catalogue import ADVANTAGES
from hexpo.domain.catalogue import Entry
from hexpo.domain.correction.catalogue import WEIGHTS
from hexpo.domain.distillation.catalogue import DISTILLATIONS
from hexpo.domain.kl.catalogue import KL_ESTIMATORS
from hexpo.domain.losses.catalogue import LOSSES, TERMS
from hexpo.domain.masks.catalogue import CHOICES, GATES, MASKS
from hexpo.domain.preference.catalogue import FITTED
from hexpo.domain.shaping.catalogue import SHAPINGS

CATALOGUES: Mapping[str, Mapping[str, Entry]] = MappingProxyType(
    {
        "advantage": ADVANTAGES,
        "policy loss": LOSSES,
        "term": TERMS,
        "KL estimator": KL_ESTIMATORS,
        "distillation": DISTILLATIONS,
        "fit": FITTED,
        "shaping": SHAPINGS,
        "weight": WEIGHTS,
        "mask": MASKS,
        "choice": CHOICES,
        "gate": GATES,
    }
)
"""Each kind of algorithm and its names."""


@attrs.frozen(kw_only=True)
class Line:
    """One algorithm as a listing shows it."""

    kind: str
    name: str
    summary: str
    formula: str
    source: str
    options: Mapping[str, str]
    """Names and defaults as text; `required` where there is none."""
    needs: tuple[str, ...]
    """Columns, and what else a run must provide."""
    unit: str
    """`token`, `sequence` or `pair`; empty for what is not a loss."""
    mode: str
    """The aggregation that belongs to it; empty where the configuration's is taken."""
    min_samples: int


def lines(kind: str | None = None) -> Iterator[Line]:
    """All algorithms, or those of one kind, in the order of the catalogues."""
    for name, catalogue in CATALOGUES.items():
        if kind is None or kind == name:
            for entry in catalogue.values():
                yield _line(name, entry)


def _line(kind: str, entry: Entry) -> Line:
    columns = entry.columns
    given = {*columns.tokens, *columns.sequences} - {"owner", "length"}
    return Line(
        kind=kind,
        name=entry.name,
        summary=entry.summary,
        formula=entry.formula,
        source=entry.source,
        options={name: _shown(default) for name, default in entry.options.items()},
        needs=(*sorted(given), *sorted(entry.needs)),
        unit="" if entry.unit is None else entry.unit.value,
        mode="" if entry.default_mode is None else entry.default_mode.value,
        min_samples=entry.min_samples,
    )


def _shown(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    value = getattr(default, "value", default)  # an enum is written as in the configuration
    return str(value)
