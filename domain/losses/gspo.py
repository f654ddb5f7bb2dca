"""GSPO and its relatives: one ratio for a whole row, the geometric mean of its tokens'."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.losses.ratio import (
    bounded_exp,
    check_clip,
    geometric_ratio,
    is_clipped,
    pessimistic,
)
from hexpo.domain.ragged import row_counts, row_means


def gspo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """Group sequence policy optimisation, a term a row.

    max(-A s, -A clip(s, 1 - low, 1 + high)), s = exp(mean_t(policy - old))

    Args: (T,) trained tokens, log-probs in nats, `policy_T` carries gradient; `owner_T` int64,
            the place of each token's row in `advantage_S` (S,).
        clip_low, clip_high: how far s may leave 1; two to three orders smaller than for tokens.
    Returns: (S,). A row without a token has s = 1 and must weigh 0.
    Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Zheng et al. 2025 (2507.18071), eq. 5.
    """
    require_same_axes(policy=policy_T, old=old_T, owner=owner_T)
    check_clip(clip_low=clip_low, clip_high=clip_high)
    ratio_S = geometric_ratio(policy_T, old_T, owner_T, rows=advantage_S.shape[0])
    return pessimistic(ratio_S, advantage_S, clip_low=clip_low, clip_high=clip_high)


def luspo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """Length-unbiased GSPO: each row counts with its own tokens, a term a row.

    tokens of the row * gspo

    Args, Returns and Raises: as `gspo`.
    Source: Length-unbiased sequence policy optimisation, 2026 (2602.05261).
    """
    terms_S = gspo(
        policy_T=policy_T,
        old_T=old_T,
        owner_T=owner_T,
        advantage_S=advantage_S,
        clip_low=clip_low,
        clip_high=clip_high,
    )
    return terms_S * row_counts(owner_T, rows=terms_S.shape[0]).to(terms_S.dtype)


def gspo_token(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_T: Tensor,
    length_S: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """GSPO with an advantage a token, a term a trained token.

    max(-A_t s_t, -A_t clip(s_t, 1 - low, 1 + high)), s_t = sg(s) exp(policy - sg(policy)), s the
    ratio of gspo: its value is the row's, its gradient goes through the token

    Args: (T,) trained tokens; `length_S` (S,) tells the number of rows only.
    Returns: (T,). Raises: as `gspo`.
    Source: Zheng et al. 2025 (2507.18071), GSPO-token.
    """
    require_same_axes(policy=policy_T, old=old_T, owner=owner_T, advantage=advantage_T)
    check_clip(clip_low=clip_low, clip_high=clip_high)
    rows = length_S.shape[0]
    ratio_S = geometric_ratio(policy_T.detach(), old_T, owner_T, rows=rows)
    ratio_T = ratio_S[owner_T] * (policy_T - policy_T.detach()).exp()
    return pessimistic(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)


def gspo_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> dict[str, Tensor]:
    """(S,) each: the ratio, KL(old || policy) a token by k1, and which rows the clip holds."""
    rows = advantage_S.shape[0]
    ratio_S = geometric_ratio(policy_T, old_T, owner_T, rows=rows)
    clipped_S = is_clipped(ratio_S, advantage_S, clip_low=clip_low, clip_high=clip_high)
    return {
        "ratio": ratio_S,
        "approximate_kl": row_means(old_T - policy_T, owner_T, rows=rows),
        "clip_share": clipped_S.to(ratio_S.dtype),
    }


def gspo_token_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_T: Tensor,
    length_S: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> dict[str, Tensor]:
    """(T,) each, as `gspo_measures`, the row's ratio at each of its tokens."""
    ratio_S = geometric_ratio(policy_T, old_T, owner_T, rows=length_S.shape[0])
    ratio_T = ratio_S[owner_T]
    clipped_T = is_clipped(ratio_T, advantage_T, clip_low=clip_low, clip_high=clip_high)
    return {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "clip_share": clipped_T.to(ratio_T.dtype),
    }


def geo_mean(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> Tensor:
    """Geometric-mean policy optimisation (GMPO), a term a row: tokens are clipped, then averaged.

    -A exp(mean_t d'), d' = s min(s d, s clip(d, -low, high)), d = policy - old, s = sign A

    Args: as `gspo`; `clip_low` and `clip_high` are widths in log space, in nats.
    Returns: (S,). Raises: WrongColumn: axes disagree. WrongValue: a negative width.
    Source: Zhao et al. 2025 (2507.20673).
    """
    require_same_axes(policy=policy_T, old=old_T, owner=owner_T)
    check_clip(clip_low=min(clip_low, 1.0), clip_high=clip_high)
    sign_T = advantage_S.sign()[owner_T]
    signed_T = sign_T * (policy_T - old_T)
    held_T = sign_T * (policy_T - old_T).clamp(-clip_low, clip_high)
    log_ratio_S = row_means(sign_T * signed_T.minimum(held_T), owner_T, rows=advantage_S.shape[0])
    return -advantage_S * bounded_exp(log_ratio_S)


def geo_mean_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> dict[str, Tensor]:
    """(S,) each: the unclipped ratio, KL by k1, and the share of each row's clipped tokens."""
    rows = advantage_S.shape[0]
    log_ratio_T, advantage_T = policy_T - old_T, advantage_S[owner_T]
    clipped_T = ((log_ratio_T > clip_high) & (advantage_T > 0)) | (
        (log_ratio_T < -clip_low) & (advantage_T < 0)
    )
    return {
        "ratio": geometric_ratio(policy_T, old_T, owner_T, rows=rows),
        "approximate_kl": row_means(-log_ratio_T, owner_T, rows=rows),
        "clip_share": row_means(clipped_T.to(policy_T.dtype), owner_T, rows=rows),
    }
