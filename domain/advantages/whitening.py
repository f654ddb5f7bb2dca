"""Whitening over the action tokens of the whole optimizer step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Adds a small float64 vector over all parts of a step: an all-reduce where rows lie apart."""


def alone(sums: Tensor) -> Tensor:
    """The total where one part holds the whole step."""
    return sums


def whiten(
    values: Tensor, *, counts: Tensor, total: Total = alone, epsilon: float = 1e-8
) -> Tensor:
    """Values with mean 0 and variance 1 over the action tokens of the step.

    (x - mean) / sqrt(var + epsilon), var unbiased; fewer than two tokens, or no spread, give 0

    Args: values: (S,) floating, finite, one a row.
        counts: (S,) how many action tokens each value stands for; 0 for none.
        total: adds the sums over the parts of the step, where there are several.
    Returns: (S,) in the dtype of `values`; exactly 0 where the count is 0.
    """
    counts = counts.to(values.dtype)
    tokens, first = total(_pair(counts.sum(), (values * counts).sum())).unbind()
    centred = values - (first / tokens.clamp(min=1)).to(values.dtype)
    second = (centred.square() * counts).sum(dtype=torch.float64)
    scale = _scale(tokens, total(second[None])[0], epsilon)
    return (centred * scale.to(values.dtype)).masked_fill(counts == 0, 0.0)


def whiten_slots(
    values_BW: Tensor, *, tokens: Tensor, total: Total = alone, epsilon: float = 1e-8
) -> Tensor:
    """The same for blocks of tokens of which some slots are empty and hold exactly 0.

    A block is summed in the dtype of the values, blocks in float64: a float64 copy of all tokens
    would take longer than everything else.

    Args: values_BW: (B, W) floating; overwritten. tokens: scalar, how many slots are not empty.
    Returns: `values_BW`; an empty slot holds what means nothing.
    """
    count, first = total(_pair(tokens, values_BW.sum(1).double().sum())).unbind()
    mean = (first / count.clamp(min=1)).to(values_BW.dtype)
    centred_BW = values_BW.sub_(mean)
    second = torch.linalg.vector_norm(centred_BW, dim=1).double().square().sum()
    second = second - (values_BW.numel() - tokens) * mean.square().double()
    scale = _scale(count, total(second.clamp(min=0)[None])[0], epsilon)
    return centred_BW.mul_(scale.to(values_BW.dtype))


def _pair(count: Tensor, sum_: Tensor) -> Tensor:
    return torch.stack([count.double(), sum_.double()])


def _scale(tokens: Tensor, second: Tensor, epsilon: float) -> Tensor:
    """1 / sqrt(var + epsilon), or 0 below two tokens."""
    variance = second / (tokens - 1).clamp(min=1)
    return (variance + epsilon).rsqrt() * (tokens > 1)
