"""Importance weights of the training policy against the sampler: constants, never a gradient.

rho = exp(old - behaviour). Each function returns one weight a token, to be used as a factor of a
term; what drops tokens altogether (and leaves the denominator too) is a mask: `rejection.py`.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from hexpo.domain.checks import one_of, require_above, require_same_axes, require_within
from hexpo.domain.losses.ratio import bounded_exp
from hexpo.domain.ragged import row_counts, row_means, row_sums


class Level(Enum):
    """Over what the log-ratio is taken."""

    TOKEN = "token"
    """The token alone."""
    SEQUENCE = "sequence"
    """The sum over the row's tokens: the product of their ratios."""
    GEOMETRIC = "geometric"
    """The mean over the row's tokens: the geometric mean of their ratios."""


def importance(old_T: Tensor, behaviour_T: Tensor, owner_T: Tensor, *, level: Level) -> Tensor:
    """(T,) rho of the level at each token, exponent bounded to +-20, without gradient.

    Args: (T,) trained tokens, log-probs in nats; `owner_T` int64, the place of each token's row.
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(old=old_T, behaviour=behaviour_T, owner=owner_T)
    log_ratio_T = (old_T - behaviour_T).detach()
    rows = int(owner_T.max()) + 1 if owner_T.numel() else 0
    match level:
        case Level.TOKEN:
            return bounded_exp(log_ratio_T)
        case Level.SEQUENCE:
            return bounded_exp(row_sums(log_ratio_T, owner_T, rows=rows))[owner_T]
        case Level.GEOMETRIC:
            return bounded_exp(row_means(log_ratio_T, owner_T, rows=rows))[owner_T]


def truncated(
    *,
    old_T: Tensor,
    behaviour_T: Tensor,
    owner_T: Tensor,
    level: Level | str = Level.TOKEN,
    bound: float = 2.0,
) -> Tensor:
    """Truncated importance sampling (TIS): the weight of a token.

    min(rho, bound), rho = exp(old - behaviour), its product over the row, or its geometric mean

    Args: as `importance`; level: `token`, `sequence` or `geometric`. bound: larger than 0.
    Returns: (T,) in ]0, bound], no gradient.
    Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Ionides 2008; for rollout engines: Yao et al. 2025, "Your efficient RL framework
        secretly brings you off-policy RL training".
    """
    require_above(0.0, bound=bound)
    weights_T = importance(old_T, behaviour_T, owner_T, level=one_of(Level, level))
    return weights_T.clamp(max=bound)


def two_sided(
    *,
    old_T: Tensor,
    behaviour_T: Tensor,
    owner_T: Tensor,
    level: Level | str = Level.TOKEN,
    low: float = 0.5,
    high: float = 5.0,
) -> Tensor:
    """IcePop: the weight of a token, 0 outside a band.

    rho if low <= rho <= high, else 0

    Args: as `truncated`; 0 < low <= 1 <= high.
    Returns: (T,) 0 or in [low, high], no gradient.
    Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: Ling team 2025, "Every step evolves" (2510.18855), IcePop.
    """
    require_above(0.0, low=low)
    require_within(low, 1.0, low=low)
    require_within(1.0, float("inf"), high=high)
    weights_T = importance(old_T, behaviour_T, owner_T, level=one_of(Level, level))
    return torch.where((weights_T >= low) & (weights_T <= high), weights_T, 0.0)


def stored(*, correction_T: Tensor, level: Level | str = Level.TOKEN, bound: float = 2.0) -> Tensor:
    """Truncated weights over their mean: as a whole they scale nothing.

    min(rho, bound) / mean of it, over the tokens (or rows) of the optimizer step

    Args: correction_T: (T,) not negative, made before the step of `level` and `bound`, which are
            those of `truncated`.
    Returns: (T,) without gradient.
    Raises: WrongValue: an option is out of range.
    Source: self-normalised importance sampling, Owen 2013, "Monte Carlo theory", chapter 9.
    """
    require_above(0.0, bound=bound)
    one_of(Level, level)
    return correction_T.detach()


def normalised(weights_T: Tensor, owner_T: Tensor, *, level: Level) -> Tensor:
    """Weights divided by their mean over the whole optimizer step, so that they scale nothing.

    The mean is taken over tokens at the token level, else over rows: one weight a row. Needs the
    tokens of the whole step: store the result as the column `correction`.

    Args: weights_T: (T,) not negative. owner_T: (T,) int64.
    Returns: (T,); weights that are all 0 stay 0.
    """
    if level is Level.TOKEN:
        mean = weights_T.mean() if weights_T.numel() else weights_T.new_ones(())
    else:
        rows = int(owner_T.max()) + 1 if owner_T.numel() else 0
        live_S = row_counts(owner_T, rows=rows) > 0
        weights_S = row_means(weights_T, owner_T, rows=rows)[live_S]
        mean = weights_S.mean() if weights_S.numel() else weights_T.new_ones(())
    return torch.where(mean > 0, weights_T / mean, weights_T)


def effective_share(weights_T: Tensor) -> float:
    """Effective sample size over tokens, as a share: (sum w)^2 / (N sum w^2).

    Returns: in [0, 1]; 0 if all weights are 0 or there is none.
    """
    weights = weights_T.double()
    squares = float(weights.square().sum())
    return float(weights.sum()) ** 2 / (weights.numel() * squares) if squares else 0.0
