"""Importance weights by name: factors of a term."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.correction.resampling import resampled
from hexpo.domain.correction.weights import stored, truncated, two_sided

WEIGHTS: Mapping[str, Entry] = by_name(
    Entry(name="truncated", function=truncated),
    Entry(name="two_sided", function=two_sided),
    Entry(name="stored", function=stored, needs=frozenset({"scoring pass"})),
    Entry(name="resampled", function=resampled, needs=frozenset({"whole step"})),
)
"""What a term's factors may name to weigh tokens."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "tis": Elsewhere(means="truncated", hint="TIS is truncated"),
        "icepop": Elsewhere(means="two_sided", hint="IcePop is two_sided"),
        "mis": Elsewhere(
            hint="masked importance sampling is a mask and a weight: use the mask rejection and"
            " the weight truncated"
        ),
    }
)
"""Names of other libraries."""
