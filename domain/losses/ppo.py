"""PPO: the clipped loss, and dual clip."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes
from hexpo.domain.losses.ratio import check_clip, is_clipped, pessimistic, token_ratio


def ppo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped loss, a term a trained token; not averaged.

    max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(policy - old); with dual_clip = c and A < 0
    at most -A c

    Args: (T,) each, floating, trained tokens only; log-probs in nats, the first carries gradient.
        clip_low, clip_high: how far r may leave 1, down and up, before its token stops pulling;
            clip-higher (DAPO) is high > low.
        dual_clip: bound, larger than 1, on the ratio of a token with a negative advantage.
    Returns: (T,), in the dtype of `policy_T`.
    Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Schulman et al. 2017 (1707.06347), eq. 7; dual clip: Ye et al. 2020 (1912.09729).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T)
    check_clip(clip_low=clip_low, clip_high=clip_high)
    ratio_T = token_ratio(policy_T, old_T)
    terms_T = pessimistic(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)
    if dual_clip is None:
        return terms_T
    require_above(1.0, dual_clip=dual_clip)
    return torch.where(advantage_T < 0, torch.minimum(terms_T, -advantage_T * dual_clip), terms_T)


def ppo_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, KL(old || policy) by k1, and which tokens the clips hold."""
    ratio_T = token_ratio(policy_T, old_T)
    clipped_T = is_clipped(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)
    measured = {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "clip_share": clipped_T.to(ratio_T.dtype),
    }
    if dual_clip is not None:
        held_T = (advantage_T < 0) & (ratio_T > dual_clip)
        measured["dual_clip_share"] = held_T.to(ratio_T.dtype)
    return measured
