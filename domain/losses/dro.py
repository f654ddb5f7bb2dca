"""DRO: a quadratic pull towards the old policy."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_at_least, require_same_axes


def dro(*, policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, beta: float = 0.05) -> Tensor:
    """Direct reward optimisation, a term a trained token.

    -(A policy - beta/2 (policy - old)^2)

    Args: (T,) trained tokens, floating; log-probs in nats, `policy_T` carries gradient.
        beta: strength of the pull; not negative.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: beta is negative.
    Source: Richemond et al. 2024 (2405.19107); as a policy loss: Kimi k1.5 2025 (2501.12599).
    """
    require_same_axes(policy=policy_T, old=old_T, advantage=advantage_T)
    require_at_least(0.0, beta=beta)
    return -(advantage_T * policy_T - beta / 2 * (policy_T - old_T).square())


def dro_measures(
    *, policy_T: Tensor, old_T: Tensor, advantage_T: Tensor, beta: float = 0.05
) -> dict[str, Tensor]:
    """(T,) each: KL(old || policy) by k1, and the squared log-ratio."""
    return {
        "approximate_kl": old_T - policy_T,
        "squared_log_ratio": (policy_T - old_T).square(),
    }
