"""Drop the tokens that are furthest from the sampler until the rest is near enough."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_same_axes


def m2_threshold(old_T: Tensor, behaviour_T: Tensor, *, bound: float = 0.04) -> float:
    """The largest (old - behaviour)^2 that may stay, so that the mean of what stays is <= bound.

    Args: (T,) trained tokens of the whole optimizer step, log-probs in nats. bound: larger than 0.
    Returns: infinity where nothing has to go; equal deviations stay or go together.
    Raises: WrongColumn: axes disagree. WrongValue: the bound is out of range.
    """
    require_same_axes(old=old_T, behaviour=behaviour_T)
    require_above(0.0, bound=bound)
    squares = (old_T - behaviour_T).detach().double().square().sort().values
    running = squares.cumsum(0) / torch.arange(1, squares.numel() + 1)
    fits = running <= bound
    if bool(fits.all()):
        return math.inf
    first = int((~fits).nonzero()[0])
    smaller = squares[:first][squares[:first] < squares[first]]
    return float(smaller[-1]) if smaller.numel() else -math.inf


def m2(
    *,
    old_T: Tensor,
    behaviour_T: Tensor,
    bound: float = 0.04,
    threshold: float | None = None,
) -> Tensor:
    """Tokens near enough to the sampler: bool (T,).

    (old - behaviour)^2 <= threshold, which leaves a mean of at most the bound over the whole step

    Args: (T,) trained tokens, nats. bound: larger than 0. threshold: from `m2_threshold`; if not
            given, the tokens must be those of the whole step.
    Raises: WrongColumn: axes disagree. WrongValue: the bound is out of range.
    Source: Zheng et al. 2025, M2PO, "Prosperity before collapse" (2510.01161).
    """
    require_same_axes(old=old_T, behaviour=behaviour_T)
    whole = m2_threshold(old_T, behaviour_T, bound=bound) if threshold is None else threshold
    return (old_T - behaviour_T).detach().double().square() <= whole
