"""A penalty on answers that come close to the limit."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_above, require_at_least
from hexpo.domain.errors import WrongValue


def overlong_penalty(
    *, actions_S: Tensor, maximum: int, buffer: int, factor: float = 1.0
) -> Tensor:
    """A penalty that grows linearly over the last tokens before the limit.

    min(-(L - (maximum - buffer)) / buffer * factor, 0), L the sampled tokens of all turns

    Args: actions_S: (S,) int64, sampled tokens of each row, all turns together (K5).
        maximum: the limit, in tokens. buffer: the tokens before it that cost something.
        factor: the penalty at the limit.
    Returns: (S,) float64, 0 or below, to be added to the outcome that estimators see.
    Raises: WrongValue: buffer is not in 1 to maximum, or factor is below 0.
    Source: DAPO, Yu et al. 2025 (2503.14476), eq. 13.
    """
    require_above(0, buffer=buffer)
    require_at_least(0.0, factor=factor)
    if buffer > maximum:
        raise WrongValue(f"the overlong buffer of {buffer} tokens is longer than {maximum}")
    beyond_S = actions_S.double() - (maximum - buffer)
    return (-beyond_S / buffer * factor).clamp(max=0.0)
