"""Keep the tokens at which the policy is undecided."""

from __future__ import annotations

import math

from torch import Tensor

from hexpo.domain.checks import require_above, require_within


def entropy_threshold(entropy_T: Tensor, *, share: float = 0.2) -> float:
    """The entropy that the top `share` of the whole step's trained tokens reaches, in nats.

    The ceil(share N)-th largest value, so that ties at the threshold all stay.

    Args: entropy_T: (T,) nats, trained tokens of the whole optimizer step. share: in ]0, 1].
    Returns: minus infinity where there is no token.
    Raises: WrongValue: the share is out of range.
    """
    require_above(0.0, share=share)
    require_within(0.0, 1.0, share=share)
    if not entropy_T.numel():
        return -math.inf
    kept = math.ceil(share * entropy_T.numel() - 1e-9)
    return float(entropy_T.detach().topk(kept).values[-1])


def top_entropy(*, entropy_T: Tensor, share: float = 0.2, threshold: float | None = None) -> Tensor:
    """Tokens at which the policy is least decided: bool (T,).

    H >= threshold, the quantile of the whole step that leaves the top `share` of its tokens

    Args: entropy_T: (T,) nats, stored, trained tokens. share: in ]0, 1]. threshold: from
            `entropy_threshold`; if not given, the tokens must be those of the whole step.
    Raises: WrongValue: the share is out of range.
    Source: Wang et al. 2025, "Beyond the 80/20 rule" (2506.01939).
    """
    whole = entropy_threshold(entropy_T, share=share) if threshold is None else threshold
    return entropy_T >= whole
