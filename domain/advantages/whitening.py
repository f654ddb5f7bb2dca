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

    Args: values: any axes, floating, finite.
        counts: the same axes, how many action tokens each value stands for; 0 for none.
        total: adds the sums over the parts of the step, where there are several.
    Returns: the axes and dtype of `values`; exactly 0 where the count is 0.
    """
    counts = counts.to(values.dtype)
    sums = torch.stack(
        [counts.sum(dtype=torch.float64), (values * counts).sum(dtype=torch.float64)]
    )
    tokens, first = total(sums).unbind()
    centred = values - (first / tokens.clamp(min=1)).to(values.dtype)
    second = (centred.square() * counts).sum(dtype=torch.float64)
    variance = total(second[None])[0] / (tokens - 1).clamp(min=1)
    scale = ((variance + epsilon).rsqrt() * (tokens > 1)).to(values.dtype)
    return (centred * scale).masked_fill(counts == 0, 0.0)
