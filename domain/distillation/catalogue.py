"""Distillation losses by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.aggregate import Unit
from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.distillation.losses import (
    forward_kl,
    jsd,
    reverse_kl,
    skew_kl,
    skew_reverse_kl,
    topk_measures,
)
from hexpo.domain.distillation.sampled import sampled, sampled_measures

_WIDE = frozenset({"policy_topk", "teacher_topk"})
_NEEDS = frozenset({"teacher", "teacher's top-k"})

DISTILLATIONS: Mapping[str, Entry] = by_name(
    *(
        Entry(
            name=function.__name__,
            function=function,
            unit=Unit.TOKEN,
            measures=topk_measures,
            needs=_NEEDS,
            wide=_WIDE,
        )
        for function in (forward_kl, reverse_kl, jsd, skew_kl, skew_reverse_kl)
    ),
    Entry(
        name="sampled",
        function=sampled,
        unit=Unit.TOKEN,
        measures=sampled_measures,
        needs=frozenset({"teacher"}),
    ),
)
"""Terms that draw the policy to a teacher."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "gkd": Elsewhere(means="jsd", hint="GKD's divergence is jsd"),
        "srkl": Elsewhere(means="skew_reverse_kl", hint="it is skew_reverse_kl"),
        "skl": Elsewhere(means="skew_kl", hint="it is skew_kl"),
    }
)
"""Names of other libraries."""
