"""Tokens whose log-prob and advantage move together, over the whole optimizer step.

Both read stored columns, so that the choice is a constant of the step and the same for every
split; at the first update it is the published one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes, require_within


def covariances(old_T: Tensor, advantage_T: Tensor) -> Tensor:
    """(T,) (A - mean A)(old - mean old), the means over all tokens given."""
    require_same_axes(old=old_T, advantage=advantage_T)
    old_T, advantage_T = old_T.detach().double(), advantage_T.detach().double()
    return (advantage_T - advantage_T.mean()) * (old_T - old_T.mean())


def top_covariance(*, old_T: Tensor, advantage_T: Tensor, share: float = 2e-4) -> Tensor:
    """Bool (T,): the tokens of highest covariance, for `kl_cov`.

    the max(1, floor(share N)) largest (A - mean A)(old - mean old)

    Args: (T,) trained tokens of the whole optimizer step; log-probs in nats. share: in ]0, 1].
    Raises: WrongColumn: axes disagree. WrongValue: the share is out of range.
    Source: Cui et al. 2025 (2505.22617).
    """
    covariance_T = covariances(old_T, advantage_T)
    return _mark(covariance_T.topk(_number(covariance_T, share)).indices, covariance_T)


def drawn_covariance(
    *,
    old_T: Tensor,
    advantage_T: Tensor,
    generator: torch.Generator,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """Bool (T,): tokens drawn among those of high covariance, for `clip_cov`.

    max(1, floor(share N)) of the tokens with low < (A - mean A)(old - mean old) < high

    Args: (T,) trained tokens of the whole optimizer step; log-probs in nats. generator: of the
            draw, on the CPU. share: in ]0, 1].
    Raises: WrongColumn: axes disagree. WrongValue: the share is out of range.
    Source: Cui et al. 2025 (2505.22617).
    """
    covariance_T = covariances(old_T, advantage_T)
    candidates = ((covariance_T > low) & (covariance_T < high)).nonzero().squeeze(1)
    order = torch.randperm(candidates.numel(), generator=generator).to(candidates.device)
    drawn = candidates[order[: _number(covariance_T, share)]]
    return _mark(drawn, covariance_T)


def _number(covariance_T: Tensor, share: float) -> int:
    require_above(0.0, share=share)
    require_within(0.0, 1.0, share=share)
    return min(covariance_T.numel(), max(1, math.floor(share * covariance_T.numel())))


def _mark(places: Tensor, like_T: Tensor) -> Tensor:
    return torch.zeros_like(like_T, dtype=torch.bool).index_fill(0, places, value=True)
