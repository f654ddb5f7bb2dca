"""Masks and gates by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.correction.rejection import rejection, veto
from hexpo.domain.masks.covariance import drawn_covariance, top_covariance
from hexpo.domain.masks.entropy import top_entropy
from hexpo.domain.masks.gates import off_policy_sequence
from hexpo.domain.masks.m2 import m2

_SCORED = frozenset({"scoring pass"})
_WHOLE = frozenset({"scoring pass", "whole step"})

MASKS: Mapping[str, Entry] = by_name(
    Entry(name="rejection", function=rejection, needs=_SCORED),
    Entry(name="veto", function=veto, needs=_SCORED),
    Entry(name="m2", function=m2, needs=_WHOLE),
    Entry(name="top_entropy", function=top_entropy, needs=_WHOLE),
)
"""Masks of stored columns, fixed before the step: they narrow `trained`, and the counts."""

CHOICES: Mapping[str, Entry] = by_name(
    Entry(name="top_covariance", function=top_covariance, needs=_WHOLE),
    Entry(name="drawn_covariance", function=drawn_covariance, needs=_WHOLE),
)
"""What fills the column `covariant` for kl_cov and clip_cov."""

GATES: Mapping[str, Entry] = by_name(
    Entry(name="off_policy_sequence", function=off_policy_sequence),
)
"""Factors of a term that read the current policy: they zero numerators only."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "off_policy_mask": Elsewhere(means="off_policy_sequence", hint="it is a gate here"),
        "top_entropy_quantile": Elsewhere(
            means="top_entropy", hint="here share is 1 - the quantile"
        ),
    }
)
"""Names of other libraries."""
