"""PF-PPO: a batch is drawn again by its scores."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Generator, Tensor

from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.checks import require_at_least, require_same_axes
from hexpo.domain.errors import WrongValue


class Preference(Enum):
    """Which rows are drawn more often."""

    POWER = "power"
    """By |R| to a power."""
    MAX_MIN = "max_min"
    """Only the best and the worst rows."""
    MAX_RANDOM = "max_random"
    """The best rows with weight 0.4, others with 0.1."""

    @classmethod
    def _missing_(cls, value: object) -> Preference:
        raise WrongValue(
            f"unknown preference {value!r}{did_you_mean(str(value), [p.value for p in cls])}"
        )


def resample(
    *,
    score_S: Tensor,
    scored_S: Tensor,
    generator: Generator,
    preference: Preference = Preference.POWER,
    power: float = 2.0,
) -> Tensor:
    """Places of as many rows as there are scored ones, drawn by score with replacement.

    weight = |R|^power, or [R is extreme], or 0.4 for the best and 0.1 for the others

    Rows without a score are never drawn. Where every weight is 0, all scored rows weigh the same.

    Args: score_S: (S,) outcomes. scored_S: (S,) bool. generator: the only source of chance.
    Returns: (N,) int64 places of rows, N the scored ones.
    Raises: WrongColumn: axes disagree. WrongValue: an unknown preference, or power is below 0.
    Source: PF-PPO, Shen et al. 2024 (2409.06957).
    """
    require_same_axes(score=score_S, scored=scored_S)
    require_at_least(0.0, power=power)
    places_N = scored_S.nonzero().squeeze(1)
    if places_N.numel() == 0:
        return places_N
    score_N = score_S[places_N].double()
    is_best_N = score_N == score_N.max()
    match Preference(preference):
        case Preference.POWER:
            size_N = score_N.abs()
            weight_N = (size_N / size_N.max().clamp(min=1e-300)) ** power
        case Preference.MAX_MIN:
            weight_N = (is_best_N | (score_N == score_N.min())).double()
        case Preference.MAX_RANDOM:
            weight_N = torch.where(is_best_N, 0.4, 0.1).double()
    if not bool((weight_N > 0).any()):
        weight_N = torch.ones_like(weight_N)
    drawn = torch.multinomial(weight_N, len(places_N), replacement=True, generator=generator)
    return places_N[drawn]
