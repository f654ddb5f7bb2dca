"""Preference losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.preference.kto import kto
from hexpo.domain.preference.losses import bradley_terry, dpo, ipo, orpo, pair_measures, simpo

_MODE = Mode.SEQ_MEAN_TOKEN_MEAN
_PAIRS = frozenset({"pairs"})
_REFERENCE = frozenset({"pairs", "reference"})

PREFERENCES: Mapping[str, Entry] = by_name(
    Entry(
        name="dpo",
        function=dpo,
        unit=Unit.PAIR,
        measures=pair_measures,
        default_mode=_MODE,
        needs=_REFERENCE,
    ),
    Entry(
        name="ipo",
        function=ipo,
        unit=Unit.PAIR,
        measures=pair_measures,
        default_mode=_MODE,
        needs=_REFERENCE,
    ),
    Entry(
        name="simpo",
        function=simpo,
        unit=Unit.PAIR,
        measures=pair_measures,
        default_mode=_MODE,
        needs=_PAIRS,
    ),
    Entry(
        name="orpo",
        function=orpo,
        unit=Unit.PAIR,
        measures=pair_measures,
        default_mode=_MODE,
        needs=_PAIRS,
    ),
    Entry(
        name="bradley_terry",
        function=bradley_terry,
        unit=Unit.PAIR,
        default_mode=_MODE,
        needs=frozenset({"pairs", "scalar head"}),
    ),
    Entry(
        name="kto",
        function=kto,
        unit=Unit.SEQUENCE,
        default_mode=_MODE,
        needs=frozenset({"judged rows", "reference", "whole-step reference point"}),
    ),
)
"""Terms of `fit` on judged answers."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "sigmoid": Elsewhere(means="dpo", hint="TRL's loss type sigmoid is dpo"),
        "reward": Elsewhere(means="bradley_terry", hint="a reward model trains by bradley_terry"),
    }
)
"""Names of other libraries."""
