"""Losses that push the log-prob itself, with a constant in front."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes
from hexpo.domain.losses.ratio import check_clip, token_ratio


def reinforce(*, policy_T: Tensor, advantage_T: Tensor) -> Tensor:
    """The policy gradient without a ratio (GPG's loss too), a term a trained token.

    -A policy

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
    Returns: (T,). Raises: WrongColumn: axes disagree.
    Source: Williams 1992; as GPG: Chu et al. 2025 (2504.02546).
    """
    require_same_axes(policy=policy_T, advantage=advantage_T)
    return -advantage_T * policy_T


def cispo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> Tensor:
    """Clipped importance weights, so that every token keeps a gradient; a term a trained token.

    -sg(clip(r, 1 - low, 1 + high)) A policy, r = exp(policy - old)

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        clip_low: 1 is off. clip_high: the bound is 1 + high.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: MiniMax-M1 2025 (2506.13585).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T)
    check_clip(clip_low=clip_low, clip_high=clip_high)
    weight_T = token_ratio(policy_T, old_T).detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight_T * advantage_T * policy_T


def cispo_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, KL(old || policy) by k1, and where the weight is at its bound."""
    ratio_T = token_ratio(policy_T, old_T)
    held_T = (ratio_T > 1 + clip_high) | (ratio_T < 1 - clip_low)
    return {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "clip_share": held_T.to(ratio_T.dtype),
    }


def aipo(
    *, policy_T: Tensor, behaviour_T: Tensor, advantage_T: Tensor, truncation: float = 2.0
) -> Tensor:
    """Truncated importance weight against the sampler, no clipping; a term a trained token.

    -sg(min(exp(policy - behaviour), c)) A policy

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        truncation: c, larger than 0.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: c is out of range.
    Source: LlamaRL 2025 (2505.24034).
    """
    require_same_axes(policy=policy_T, behaviour=behaviour_T, advantage=advantage_T)
    require_above(0.0, truncation=truncation)
    weight_T = token_ratio(policy_T, behaviour_T).detach().clamp(max=truncation)
    return -weight_T * advantage_T * policy_T


def aipo_measures(
    *, policy_T: Tensor, behaviour_T: Tensor, advantage_T: Tensor, truncation: float = 2.0
) -> dict[str, Tensor]:
    """(T,) each: the ratio to the behaviour, and where it is truncated."""
    ratio_T = token_ratio(policy_T, behaviour_T)
    return {"ratio": ratio_T, "clip_share": (ratio_T > truncation).to(ratio_T.dtype)}
