"""Sums over the tokens of each row, for rows that lie end to end."""

from __future__ import annotations

import torch
from torch import Tensor


def row_counts(owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) int64: the tokens of each row.

    Args: owner_T: (T,) int64, the place of each token's row.
    """
    return owner_T.bincount(minlength=rows)


def row_sums(values_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) each row's sum; 0 for a row without a token. Dtype and gradient of `values_T`."""
    return values_T.new_zeros(rows).index_add(0, owner_T, values_T)


def row_means(values_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) each row's mean; 0 for a row without a token. Dtype and gradient of `values_T`."""
    counts = row_counts(owner_T, rows=rows).clamp(min=1)
    return row_sums(values_T, owner_T, rows=rows) / counts.to(values_T.dtype)


def row_maxima(values_T: Tensor, owner_T: Tensor, *, rows: int, empty: float) -> Tensor:
    """(S,) each row's largest value; `empty` for a row without a token."""
    start = values_T.new_full((rows,), empty)
    return start.scatter_reduce(0, owner_T, values_T, "amax", include_self=False)


def row_lasts(values_T: Tensor, owner_T: Tensor, *, rows: int) -> Tensor:
    """(S,) the last value of each row; 0 for a row without a token. Carries gradient.

    Args: owner_T: (T,) int64, ascending: a row's tokens lie together.
    """
    counts = row_counts(owner_T, rows=rows)
    padded = torch.cat([values_T.new_zeros(1), values_T])
    return padded[torch.where(counts > 0, counts.cumsum(0), 0)]
