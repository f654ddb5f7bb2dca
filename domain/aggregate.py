"""How per-token (or per-sequence) terms become one number: one function for every loss.

A denominator counts the *whole optimizer step*, over all ranks and micro-batches. So each row
gets its weight once, from the whole step's table, before anything is split; after that a loss is
a plain weighted sum, and no split can change it (A1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import torch
from torch import Tensor

from hexpo.domain.errors import MissingCount, WrongColumn, WrongValue


class Unit(Enum):
    """What a loss gives one number for."""

    TOKEN = "token"
    """Each trained token."""
    SEQUENCE = "sequence"
    """Each row."""
    PAIR = "pair"
    """Each pair of rows: the two rows of one group."""


class Mode(Enum):
    """What weighs the same as what."""

    TOKEN_MEAN = "token-mean"
    """Every token of the step."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Every live sequence; inside it every token."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """Sequences' sums, averaged over live sequences."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    """The same, over a configured constant (Dr.GRPO), never over a tensor's width."""
    TOKEN_SUM = "token-sum"
    """No denominator."""
    PROMPT_MEAN = "prompt-mean"
    """Every prompt (group); inside it every token."""


FORMULAS: Mapping[Mode, str] = MappingProxyType(
    {
        Mode.TOKEN_MEAN: "sum of x / tokens of the step",
        Mode.SEQ_MEAN_TOKEN_MEAN: "sum over rows (sum of x / tokens of the row) / live rows",
        Mode.SEQ_MEAN_TOKEN_SUM: "sum of x / live rows",
        Mode.SEQ_MEAN_TOKEN_SUM_NORM: "sum of x / (live rows * constant)",
        Mode.TOKEN_SUM: "sum of x",
        Mode.PROMPT_MEAN: "sum over groups (sum of x / tokens of the group) / live groups",
    }
)
"""What each mode makes of the trained tokens' x; a live row or group has at least one."""


def row_weights(
    *,
    trained_S: Tensor,
    group_S: Tensor,
    mode: Mode,
    unit: Unit = Unit.TOKEN,
    constant: float | None = None,
) -> Tensor:
    """The weight of one unit of each row, from the table of the whole optimizer step.

    Args: trained_S: (S,) int64, units that count in each row: its trained tokens.
        group_S: (S,) int64, the group of each row; for pairs, what two rows share.
        constant: divisor of `seq-mean-token-sum-norm`, in tokens.
    Returns: (S,) float64; 0 for rows without a trained token (A4). A pair's weight is the sum of
        its two rows' weights (`pair_weights`); it counts if both rows have trained tokens.
    Raises: MissingCount: the constant is missing. WrongColumn: axes differ, or a group that is
        not a pair. WrongValue: a mode that the unit refuses.
    """
    if trained_S.shape != group_S.shape or trained_S.dim() != 1:
        raise WrongColumn(
            f"trained {tuple(trained_S.shape)} and group {tuple(group_S.shape)} must both be (S,)"
        )
    trained = trained_S.double()
    live = trained > 0
    sequences = live.sum().clamp(min=1)
    if unit is not Unit.TOKEN:
        return _unit_weights(live, group_S, mode=mode, unit=unit)
    match mode:
        case Mode.TOKEN_MEAN:
            weights = torch.ones_like(trained) / trained.sum().clamp(min=1)
        case Mode.SEQ_MEAN_TOKEN_MEAN:
            weights = 1 / (sequences * trained.clamp(min=1))
        case Mode.SEQ_MEAN_TOKEN_SUM:
            weights = torch.ones_like(trained) / sequences
        case Mode.SEQ_MEAN_TOKEN_SUM_NORM:
            if not constant:
                raise MissingCount(f"{mode.value} needs `constant`, its divisor in tokens")
            weights = torch.ones_like(trained) / (sequences * constant)
        case Mode.TOKEN_SUM:
            weights = torch.ones_like(trained)
        case Mode.PROMPT_MEAN:
            tokens = _per_group(trained, group_S).clamp(min=1)
            weights = 1 / (_prompts(group_S, live) * tokens)
    return torch.where(live, weights, 0.0)


def _unit_weights(live: Tensor, group_S: Tensor, *, mode: Mode, unit: Unit) -> Tensor:
    """(S,) float64 weights where a row, or a pair of rows, has one number."""
    if mode in (Mode.TOKEN_MEAN, Mode.TOKEN_SUM):
        raise WrongValue(
            f"{mode.value} does not exist for a loss with one number a {unit.value};"
            " use seq-mean-token-mean"
        )
    counted = live.double()
    if unit is Unit.PAIR:
        require_pairs(group_S)
        both = (_per_group(counted, group_S) == 2).double()
        return both / both.sum().clamp(min=1)
    if mode is Mode.PROMPT_MEAN:
        rows = _per_group(counted, group_S).clamp(min=1)
        return counted / (_prompts(group_S, live) * rows)
    return counted / counted.sum().clamp(min=1)


def require_pairs(group_S: Tensor) -> None:
    """Raises WrongColumn unless every group has two rows; names the first that has not."""
    groups, sizes = torch.unique(group_S, return_counts=True)
    if bool((odd := sizes != 2).any()):
        raise WrongColumn(
            f"group {int(groups[odd][0])} has {int(sizes[odd][0])} rows here; a pair has two,"
            " which must lie in one part of the batch"
        )


def pair_weights(weights_S: Tensor, group_S: Tensor) -> Tensor:
    """(P,) the weight of each pair, by ascending group: the sum of its two rows' weights.

    Raises: WrongColumn: a pair is torn, or has more than two rows.
    """
    require_pairs(group_S)
    _, place = torch.unique(group_S, return_inverse=True)
    return weights_S.new_zeros(group_S.shape[0] // 2).index_add(0, place, weights_S)


def _per_group(values_S: Tensor, group_S: Tensor) -> Tensor:
    """(S,) each row's sum over its group."""
    _, place = torch.unique(group_S, return_inverse=True)
    sums = values_S.new_zeros(int(place.max()) + 1 if place.numel() else 0)
    return sums.index_add(0, place, values_S)[place]


def _prompts(group_S: Tensor, live: Tensor) -> int:
    return max(1, int(torch.unique(group_S[live]).numel()))


def aggregate(terms: Tensor, *, weights: Tensor) -> Tensor:
    """Sum of terms times their units' weights, both (N,); 0 with a gradient path for no unit.

    Terms are those of trained units only: masking selects, it never multiplies (A3).
    Raises: WrongColumn: the axes differ.
    """
    if terms.shape != weights.shape:
        raise WrongColumn(f"terms {tuple(terms.shape)} and weights {tuple(weights.shape)} differ")
    return torch.dot(terms, weights.to(terms.dtype))
