"""Weights in the layout of `products.c`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.kernels.native import Library

COLUMNS = 48
"""Lines of a panel, as in `products.c`."""


@attrs.frozen(kw_only=True, eq=False)
class Packed:
    """A bf16 matrix that others are multiplied by. A row's result depends on that row alone."""

    products: Library
    panels: Tensor
    entries: int
    """Of the reduction: the width of what is multiplied."""
    columns: int
    """The width of the result."""

    def multiply(self, x_TE: Tensor, more: Tensor | None = None) -> Tensor:
        """The product, and `more`, (T, columns) or (columns,), added before the one rounding."""
        x_TE = x_TE if x_TE.stride(1) == 1 and x_TE.stride(0) % 2 == 0 else x_TE.contiguous()
        out = x_TE.new_empty(len(x_TE), self.columns)
        more = None if more is None else more.contiguous()
        step = 0 if more is None or more.ndim == 1 else self.columns
        self.products.call(
            "multiply",
            *(x_TE, self.panels, more, out),
            *(x_TE.stride(0), step, len(x_TE), self.entries, self.columns),
        )
        return out


def pack(products: Library, weights: Sequence[Tensor], *, transposed: bool) -> Packed | None:
    """Weights (N_i, K), one after the other, for x W^T, or transposed x W. None where they are no
    bf16 of an even number of entries on the CPU."""
    unit = 2 if transposed else COLUMNS
    if any(len(weight) % unit for weight in weights[:-1]):
        weights = [torch.cat(tuple(weights))]
    lines, width = sum(map(len, weights)), weights[0].shape[1]
    columns, entries = (width, lines) if transposed else (lines, width)
    if entries % 2 or not all(map(_fits, weights)):
        return None
    size = COLUMNS * (entries // 2)
    packed = torch.empty(-(-columns // COLUMNS) * size, dtype=torch.int32)
    start = 0
    for weight in weights:
        place = packed[start // unit * (COLUMNS if transposed else size) :]
        shape = weight.shape[::-1] if transposed else weight.shape
        products.call(
            "pack_panels", weight, place, weight.stride(0), *shape, int(not transposed), size
        )
        start += len(weight)
    return Packed(products=products, panels=packed, entries=entries, columns=columns)


def _fits(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu"
    return weight.dtype == torch.bfloat16 and on_cpu and weight.is_contiguous()
