"""SAPO: a soft gate instead of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes
from hexpo.domain.losses.ratio import token_ratio


def sapo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Tensor:
    """Soft adaptive policy optimisation, a term a trained token.

    -A sigmoid(tau (r - 1)) 4 / tau, r = exp(policy - old); the gradient at r = 1 is PPO's

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        tau_positive, tau_negative: steepness of the gate for A > 0 and otherwise; larger than 0.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: a tau is out of range.
    Source: Gao et al. 2025 (2511.20347).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T)
    require_above(0.0, tau_positive=tau_positive, tau_negative=tau_negative)
    tau_T = torch.where(advantage_T > 0, tau_positive, tau_negative).to(policy_T.dtype)
    gate_T = (tau_T * (token_ratio(policy_T, old_T) - 1)).sigmoid()
    return -advantage_T * gate_T * 4 / tau_T


def sapo_measures(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> dict[str, Tensor]:
    """(T,) each: the ratio, and KL(old || policy) by k1."""
    return {"ratio": token_ratio(policy_T, old_T), "approximate_kl": old_T - policy_T}
