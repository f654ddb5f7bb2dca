"""Every named algorithm in one listing, made from the catalogues and their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs

from hexpo.domain.advantages import catalogue as advantages
from hexpo.domain.aggregate import FORMULAS
from hexpo.domain.catalogue import Elsewhere, Entry
from hexpo.domain.correction import catalogue as correction
from hexpo.domain.distillation import catalogue as distillation
from hexpo.domain.kl import catalogue as kl
from hexpo.domain.losses import catalogue as losses
from hexpo.domain.masks import catalogue as masks
from hexpo.domain.preference import catalogue as preference
from hexpo.domain.shaping.catalogue import SHAPINGS

CATALOGUES: Mapping[str, Mapping[str, Entry]] = MappingProxyType(
    {
        "advantage": advantages.ADVANTAGES,
        "policy loss": losses.LOSSES,
        "term": losses.TERMS,
        "KL estimator": kl.KL_ESTIMATORS,
        "distillation": distillation.DISTILLATIONS,
        "fit": preference.FITTED,
        "shaping": SHAPINGS,
        "weight": correction.WEIGHTS,
        "mask": masks.MASKS,
        "choice": masks.CHOICES,
        "gate": masks.GATES,
        "controller": kl.CONTROLLERS,
    }
)
"""Each kind of algorithm and its names."""

AGGREGATION = "aggregation"
"""The kind of what has no function of its own: ways to make many numbers one."""

KINDS = (*CATALOGUES, AGGREGATION)

ELSEWHERE: Mapping[str, Mapping[str, Elsewhere]] = MappingProxyType(
    {
        "advantage": advantages.ELSEWHERE,
        "policy loss": losses.ELSEWHERE,
        "KL estimator": kl.ELSEWHERE,
        "distillation": distillation.ELSEWHERE,
        "fit": preference.ELSEWHERE,
        "weight": correction.ELSEWHERE,
        "gate": masks.ELSEWHERE,
    }
)
"""Names of other libraries: what each means here, or why it is refused."""


@attrs.frozen(kw_only=True)
class Line:
    """One algorithm as a listing shows it."""

    kind: str
    name: str
    summary: str = ""
    formula: str
    source: str = ""
    options: Mapping[str, str] = MappingProxyType({})
    """Names and defaults as text; `required` where there is none."""
    needs: tuple[str, ...] = ()
    """Columns that it reads."""
    asks: tuple[str, ...] = ()
    """What a run must provide beside columns: a critic, two samples a prompt, ..."""
    unit: str = ""
    """`token`, `sequence` or `pair`; empty for what is not a loss."""
    mode: str = ""
    """The aggregation that belongs to it; empty where the configuration's is taken."""


def lines(kind: str | None = None) -> Iterator[Line]:
    """All algorithms, or those of one kind, in the order of the catalogues."""
    for name, catalogue in CATALOGUES.items():
        if kind is None or kind == name:
            for entry in catalogue.values():
                yield _line(name, entry)
    if kind in (None, AGGREGATION):
        for mode, formula in FORMULAS.items():
            yield Line(kind=AGGREGATION, name=mode.value, formula=formula)


def _line(kind: str, entry: Entry) -> Line:
    columns = entry.columns
    given = {*columns.tokens, *columns.sequences} - {"owner", "length"}
    samples = [f"at least {entry.min_samples} samples a prompt"] if entry.min_samples > 1 else []
    return Line(
        kind=kind,
        name=entry.name,
        summary=entry.summary,
        formula=entry.formula,
        source=entry.source,
        options={name: _shown(default) for name, default in entry.options.items()},
        needs=tuple(sorted(given)),
        asks=(*sorted(entry.needs), *samples),
        unit="" if entry.unit is None else entry.unit.value,
        mode="" if entry.default_mode is None else entry.default_mode.value,
    )


def _shown(default: object) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    value = getattr(default, "value", default)  # an enum is written as in the configuration
    return str(value)
