"""Weights in the layout of `products.c`."""

from __future__ import annotations

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


def pack(products: Library, weight_NK: Tensor, *, transposed: bool) -> Packed | None:
    """For x W^T, or transposed x W. None where the weight is no bf16 of an even number of entries
    on the CPU."""
    columns, entries = weight_NK.shape if not transposed else weight_NK.shape[::-1]
    fits = weight_NK.dtype == torch.bfloat16 and weight_NK.device.type == "cpu"
    if not fits or entries % 2 or not weight_NK.is_contiguous():
        return None
    panels = -(-columns // COLUMNS)
    packed = torch.empty(panels * COLUMNS * (entries // 2), dtype=torch.int32)
    by_line = int(not transposed)
    products.call("pack_panels", weight_NK, packed, weight_NK.stride(0), columns, entries, by_line)
    return Packed(products=products, panels=packed, entries=entries, columns=columns)
