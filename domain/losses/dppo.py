"""DPPO: a gate on the divergence of the sampled token instead of a clip on its ratio.

The gates measure against `old`; where the objective's proximal policy is the behaviour, that is
the policy that sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_at_least, require_same_axes
from hexpo.domain.losses.ratio import token_ratio


def dppo_tv(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    gate_low: float = 0.2,
    gate_high: float = 0.2,
    truncation: float = 20.0,
) -> Tensor:
    """DPPO with total variation, a term a trained token.

    -A sg(min(r, c)) policy where open, else 0; open: p - p_old <= high (A > 0), p - p_old >= -low

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        gate_low, gate_high: how far the probability may move, down and up; not negative.
        truncation: c, larger than 0.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Qi et al. 2026 (2602.04879).
    """
    _check(policy_T, old_T, advantage_T, gate_low, gate_high, truncation)
    is_open_T = _open_tv(policy_T, old_T, advantage_T, gate_low, gate_high)
    return _gated(policy_T, old_T, advantage_T, is_open_T, truncation)


def dppo_kl(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    gate_low: float = 0.2,
    gate_high: float = 0.2,
    truncation: float = 20.0,
) -> Tensor:
    """DPPO with the binary KL of the sampled token, a term a trained token.

    -A sg(min(r, c)) policy where open, else 0; k = p_old (old - policy) +
    (1 - p_old) ln((1 - p_old) / (1 - p)); open: k <= high or p <= p_old (A > 0), k <= low or
    p >= p_old

    Args: as `dppo_tv`; the gates are in nats.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Qi et al. 2026 (2602.04879).
    """
    _check(policy_T, old_T, advantage_T, gate_low, gate_high, truncation)
    is_open_T = _open_kl(policy_T, old_T, advantage_T, gate_low, gate_high)
    return _gated(policy_T, old_T, advantage_T, is_open_T, truncation)


def dppo_tv_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    gate_low: float = 0.2,
    gate_high: float = 0.2,
    truncation: float = 20.0,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, KL(old || policy) by k1, closed gates and truncated ratios."""
    is_open_T = _open_tv(policy_T, old_T, advantage_T, gate_low, gate_high)
    return _measures(policy_T, old_T, is_open_T, truncation)


def dppo_kl_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    gate_low: float = 0.2,
    gate_high: float = 0.2,
    truncation: float = 20.0,
) -> dict[str, Tensor]:
    """(T,) each, as `dppo_tv_measures`."""
    is_open_T = _open_kl(policy_T, old_T, advantage_T, gate_low, gate_high)
    return _measures(policy_T, old_T, is_open_T, truncation)


def _check(
    policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, low: float, high: float, bound: float
) -> None:
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T)
    require_at_least(0.0, gate_low=low, gate_high=high)
    require_above(0.0, truncation=bound)


def _open_tv(
    policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, low: float, high: float
) -> Tensor:
    moved_T = policy_T.detach().exp() - old_T.exp()
    return torch.where(advantage_T > 0, moved_T <= high, moved_T >= -low)


def _open_kl(
    policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, low: float, high: float
) -> Tensor:
    policy_T = policy_T.detach()
    p_T, p_old_T = policy_T.exp(), old_T.exp()
    # The other mass is kept off 0, where its log is no number.
    tiny = torch.finfo(policy_T.dtype).eps
    rest_T, rest_old_T = (1 - p_T).clamp(min=tiny), (1 - p_old_T).clamp(min=tiny)
    kl_T = p_old_T * (old_T - policy_T) + rest_old_T * (rest_old_T / rest_T).log()
    return torch.where(
        advantage_T > 0, (kl_T <= high) | (p_T <= p_old_T), (kl_T <= low) | (p_T >= p_old_T)
    )


def _gated(
    policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, is_open_T: Tensor, bound: float
) -> Tensor:
    weight_T = token_ratio(policy_T, old_T).detach().clamp(max=bound)
    return torch.where(is_open_T, -advantage_T * weight_T * policy_T, 0.0)


def _measures(
    policy_T: Tensor, old_T: Tensor, is_open_T: Tensor, bound: float
) -> dict[str, Tensor]:
    ratio_T = token_ratio(policy_T, old_T)
    return {
        "ratio": ratio_T,
        "approximate_kl": old_T - policy_T,
        "clip_share": (~is_open_T).to(ratio_T.dtype),
        "truncated_share": (ratio_T > bound).to(ratio_T.dtype),
    }
