"""The entropy bonus."""

from __future__ import annotations

from torch import Tensor


def entropy(*, entropy_T: Tensor) -> Tensor:
    """Minus the policy's entropy, so that a positive coefficient is a bonus; a term a token.

    -H(policy)

    Args: entropy_T: (T,) nats, of the whole distribution at each token, carries gradient.
    Returns: (T,).
    Source: Mnih et al. 2016 (1602.01783), section 4.
    """
    return -entropy_T
