"""Losses that hold back tokens whose log-prob and advantage move together.

Which tokens is a statistic of the whole optimizer step: `masks/covariance.py` chooses them from
stored columns, and they come in as a column, so that no split of the step changes a choice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_at_least, require_same_axes
from hexpo.domain.losses.ratio import check_clip, is_clipped, pessimistic, token_ratio


def clip_cov(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    covariant_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """PPO without the pull of a few drawn tokens of high covariance; a term a trained token.

    0 at the drawn tokens, ppo without dual clip elsewhere

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        covariant_T: (T,) bool, the tokens drawn by `masks.covariance.drawn_covariance`.
        clip_low, clip_high: as `ppo`.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Cui et al. 2025 (2505.22617).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T, covariant=covariant_T)
    check_clip(clip_low=clip_low, clip_high=clip_high)
    ratio_T = token_ratio(policy_T, old_T)
    terms_T = pessimistic(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)
    return torch.where(covariant_T, 0.0, terms_T)


def clip_cov_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    covariant_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, KL(old || policy) by k1, and what the clip and the draw hold."""
    ratio_T = token_ratio(policy_T, old_T)
    held_T = is_clipped(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)
    return {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "clip_share": held_T.to(ratio_T.dtype),
        "covariant_share": covariant_T.to(ratio_T.dtype),
    }


def kl_cov(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    covariant_T: Tensor,
    coefficient: float = 1.0,
) -> Tensor:
    """A KL penalty on the tokens of highest covariance, no clip; a term a trained token.

    -A r, and + coefficient |policy - old| at the chosen tokens, r = exp(policy - old)

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        covariant_T: (T,) bool, the tokens chosen by `masks.covariance.top_covariance`.
        coefficient: of the penalty; not negative.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: the coefficient is negative.
    Source: Cui et al. 2025 (2505.22617).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T, covariant=covariant_T)
    require_at_least(0.0, coefficient=coefficient)
    terms_T = -advantage_T * token_ratio(policy_T, old_T)
    penalty_T = coefficient * (policy_T - old_T).abs()
    return terms_T + torch.where(covariant_T, penalty_T, 0.0)


def kl_cov_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    covariant_T: Tensor,
    coefficient: float = 1.0,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, KL(old || policy) by k1, and the share of chosen tokens."""
    ratio_T = token_ratio(policy_T, old_T)
    return {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "covariant_share": covariant_T.to(ratio_T.dtype),
    }
