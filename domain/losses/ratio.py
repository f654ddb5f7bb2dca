"""The importance ratio, with a bounded exponent."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_at_least, require_within
from hexpo.domain.ragged import row_means, row_sums

BOUND = 20.0
"""Largest size of the exponent, in nats: beyond it a ratio is no number to train on."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(clamp(x, -20, 20)); no gradient beyond the bound."""
    return log_ratio.clamp(-BOUND, BOUND).exp()


def token_ratio(policy_T: Tensor, old_T: Tensor) -> Tensor:
    """(T,) exp(policy - old), the exponent bounded."""
    return bounded_exp(policy_T - old_T)


def geometric_ratio(policy_T: Tensor, old_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) exp of the mean log-ratio of each row: the geometric mean of its tokens' ratios."""
    return bounded_exp(row_means(policy_T - old_T, owner_T, rows=rows))


def sequence_ratio(policy_T: Tensor, old_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) exp of the summed log-ratio of each row: the product of its tokens' ratios."""
    return bounded_exp(row_sums(policy_T - old_T, owner_T, rows=rows))


def check_clip(*, clip_low: float, clip_high: float) -> None:
    """Raises WrongValue: `clip_low` outside [0, 1] or `clip_high` below 0."""
    require_within(0.0, 1.0, clip_low=clip_low)
    require_at_least(0.0, clip_high=clip_high)


def pessimistic(ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """The larger of -A r and -A clip(r, 1 - low, 1 + high)."""
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(-advantage * ratio, -advantage * clipped)


def is_clipped(ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Bool: where the clipped value is the larger one, so that the ratio no longer pulls."""
    above, below = ratio > 1 + clip_high, ratio < 1 - clip_low
    return (above & (advantage > 0)) | (below & (advantage < 0))
