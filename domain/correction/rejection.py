"""Which tokens are too far from the sampler to train on: masks of stored columns.

They are made before the step from `old` and `behaviour`, so that numerator and denominator use
the same tokens (A2). The outcome of a row whose tokens are rejected stays in its group.
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from hexpo.domain.checks import one_of, require_above, require_same_axes, require_within
from hexpo.domain.errors import WrongValue
from hexpo.domain.losses.ratio import BOUND, bounded_exp
from hexpo.domain.ragged import row_maxima, row_means, row_sums


class Divergence(Enum):
    """How far a token is from the sampler, x = old - behaviour."""

    K1 = "k1"
    """x, as a band on the ratio: two-sided."""
    K2 = "k2"
    """x^2 / 2."""
    K3 = "k3"
    """exp(x) - 1 - x."""


class Over(Enum):
    """What of a row is held against the bound."""

    TOKEN = "token"
    """Each token by itself; only that token goes."""
    SUM = "sum"
    """The sum over the row; the row goes."""
    MEAN = "mean"
    """The mean over the row; the row goes."""
    MAX = "max"
    """The worst token; the row goes."""


def rejection(
    *,
    old_T: Tensor,
    behaviour_T: Tensor,
    owner_T: Tensor,
    divergence: Divergence | str = Divergence.K1,
    over: Over | str = Over.TOKEN,
    low: float | None = None,
    high: float = 2.0,
) -> Tensor:
    """Tokens that are near enough to the sampler: bool (T,).

    k1: low <= exp(x) <= high, x = old - behaviour of the token, the row's sum or mean, for `max`
    of every token; k2 = x^2/2 and k3 = exp(x) - 1 - x: value <= high

    Args: (T,) trained tokens, log-probs in nats; `owner_T` int64, the place of each token's row.
        low, high: of the ratio for k1, low is 1/high if not given; high alone, in nats, else.
    Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: sequence rejection: Liu et al. 2025, "When speed kills stability"; the names are those
        of verl's rollout correction.
    """
    require_same_axes(old=old_T, behaviour=behaviour_T, owner=owner_T)
    divergence, over = one_of(Divergence, divergence), one_of(Over, over)
    x_T = (old_T - behaviour_T).detach()
    if divergence is Divergence.K1:
        require_above(1.0, high=high)
        low = 1 / high if low is None else low
        require_within(0.0, 1.0, low=low)
        return (bounded_exp(_over(x_T, owner_T, over)) <= high) & (
            bounded_exp(-_over(-x_T, owner_T, over)) >= low
        )
    require_above(0.0, high=high)
    if low is not None:
        raise WrongValue(f"low is {low}, but {divergence.value} has an upper bound only; drop low")
    value_T = x_T.square() / 2 if divergence is Divergence.K2 else _k3(x_T)
    return _over(value_T, owner_T, over) <= high


def veto(*, old_T: Tensor, behaviour_T: Tensor, owner_T: Tensor, bound: float = 1e-4) -> Tensor:
    """Tokens of rows that no token vetoes: bool (T,).

    min_t exp(old - behaviour) >= bound

    Args: as `rejection`. bound: a ratio under which the training policy would hardly have sampled
            the token; in ]0, 1].
    Raises: WrongColumn: axes disagree. WrongValue: the bound is out of range.
    Source: Liu et al. 2025, "When speed kills stability", catastrophic-token veto.
    """
    require_same_axes(old=old_T, behaviour=behaviour_T, owner=owner_T)
    require_above(0.0, bound=bound)
    require_within(0.0, 1.0, bound=bound)
    worst_T = -_over((behaviour_T - old_T).detach(), owner_T, Over.MAX)
    return bounded_exp(worst_T) >= bound


def _k3(x_T: Tensor) -> Tensor:
    bounded_T = x_T.clamp(-BOUND, BOUND)
    return torch.expm1(bounded_T) - bounded_T


def _over(values_T: Tensor, owner_T: Tensor, over: Over) -> Tensor:
    """(T,) the value itself, or its row's sum, mean or largest at each token."""
    rows = int(owner_T.max()) + 1 if owner_T.numel() else 0
    match over:
        case Over.TOKEN:
            return values_T
        case Over.SUM:
            return row_sums(values_T, owner_T, rows=rows)[owner_T]
        case Over.MEAN:
            return row_means(values_T, owner_T, rows=rows)[owner_T]
        case Over.MAX:
            return row_maxima(values_T, owner_T, rows=rows, empty=0.0)[owner_T]
