"""Preference losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.losses.supervised import nll, nll_measures
from hexpo.domain.preference.kto import kto, kto_measures
from hexpo.domain.preference.losses import (
    bradley_terry,
    dpo,
    ipo,
    orpo,
    pair_measures,
    score_measures,
    simpo,
)

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
        measures=score_measures,
        default_mode=_MODE,
        needs=frozenset({"pairs", "scalar head"}),
    ),
    Entry(
        name="kto",
        function=kto,
        unit=Unit.SEQUENCE,
        measures=kto_measures,
        default_mode=_MODE,
        needs=frozenset({"judged rows", "reference", "whole-step reference point"}),
    ),
)
"""Losses of `fit` on judged answers."""

FITTED: Mapping[str, Entry] = by_name(
    Entry(
        name="sft",
        function=nll,
        unit=Unit.TOKEN,
        measures=nll_measures,
        needs=frozenset({"answers"}),
    ),
    *PREFERENCES.values(),
)
"""What `algorithm.loss` may name in `fit`."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "sigmoid": Elsewhere(means="dpo", hint="TRL's loss type sigmoid is dpo"),
        "reward": Elsewhere(means="bradley_terry", hint="a reward model trains by bradley_terry"),
    }
)
"""Names of other libraries."""
