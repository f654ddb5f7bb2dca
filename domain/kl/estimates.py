"""Estimates of KL(policy || reference) at a sampled token: value and gradient are both chosen.

d = policy - reference, the log-prob of the taken token under each. What the mean over tokens
sampled from the policy gives: k1 and k3 the right value, k2 the right gradient (k1's is 0, k3's
is another divergence's). A name with a plus has the value of the one and the gradient of k2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes

Estimate = Callable[..., Tensor]
"""Takes `policy_T` and `reference_T`, gives (T,)."""

K3_CAP = 10.0
"""Largest value of k3."""
K3_CAP_LOG_RATIO = 2.6108686381
"""-d at which k3 reaches its cap; beyond it the gradient stays what it is there."""


def k1(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The log-ratio itself: an unbiased value of high variance.

    value d; gradient 1

    Args: (T,) each, floating, log-probs of the taken token in nats; the first carries gradient.
    Returns: (T,), in the dtype of `policy_T`.
    Raises: WrongColumn: axes disagree.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    return _log_ratio(policy_T, reference_T)


def absolute(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The size of the log-ratio.

    value |d|; gradient sign d

    Args, returns, raises: as for `k1`.
    Source: verl and TRL, "abs".
    """
    return _log_ratio(policy_T, reference_T).abs()


def k2(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """Half the squared log-ratio: its gradient is the reverse KL's, on-policy.

    value d^2 / 2; gradient d

    Args, returns, raises: as for `k1`.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    return _log_ratio(policy_T, reference_T).square() / 2


def k3(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """A value that is unbiased, never negative and of low variance.

    value min(exp(-d) + d - 1, 10); gradient 1 - exp(-d), which stays -12.610869 where
    -d > 2.610869

    Beyond the cap the gradient still pushes in the right direction, and stays finite.

    Args, returns, raises: as for `k1`.
    Source: Schulman 2020, "Approximating KL divergence".
    """
    log_ratio_T = _log_ratio(policy_T, reference_T)
    with torch.no_grad():
        bounded_T = (-log_ratio_T).clamp(max=K3_CAP_LOG_RATIO)
        growth_T = bounded_T.expm1()
        value_T = (growth_T - bounded_T).clamp(max=K3_CAP)
    return _graded(value_T, log_ratio_T, slope_T=-growth_T)


def k1_plus(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The value of k1 with the gradient of k2.

    value d; gradient d

    Args, returns, raises: as for `k1`.
    Source: verl, names with a plus.
    """
    return _straight_through(k1, policy_T, reference_T)


def absolute_plus(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The value of abs with the gradient of k2.

    value |d|; gradient d

    Args, returns, raises: as for `k1`.
    Source: verl, names with a plus.
    """
    return _straight_through(absolute, policy_T, reference_T)


def k3_plus(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The value of k3 with the gradient of k2.

    value min(exp(-d) + d - 1, 10); gradient d

    Args, returns, raises: as for `k1`.
    Source: verl, names with a plus.
    """
    return _straight_through(k3, policy_T, reference_T)


def capped(*, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """(T,) bool: tokens whose k3 is held at its cap."""
    log_ratio_T = _log_ratio(policy_T, reference_T)
    return (-log_ratio_T).expm1() + log_ratio_T > K3_CAP


def _log_ratio(policy_T: Tensor, reference_T: Tensor) -> Tensor:
    require_same_axes(policy=policy_T, reference=reference_T)
    return policy_T - reference_T


def _straight_through(estimate: Estimate, policy_T: Tensor, reference_T: Tensor) -> Tensor:
    """The value of an estimate, with the gradient of k2."""
    log_ratio_T = _log_ratio(policy_T, reference_T)
    with torch.no_grad():
        value_T = estimate(policy_T=policy_T, reference_T=reference_T)
    return _graded(value_T, log_ratio_T, slope_T=log_ratio_T)


def _graded(value_T: Tensor, log_ratio_T: Tensor, *, slope_T: Tensor) -> Tensor:
    """A value, and its derivative to the log-ratio, as one differentiable number."""
    return value_T + slope_T.detach() * (log_ratio_T - log_ratio_T.detach())
