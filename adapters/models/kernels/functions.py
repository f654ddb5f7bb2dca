"""Differentiable kernels for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from hexpo.adapters.models.kernels.dispatch import Kernels
from hexpo.adapters.models.sums import sum_of, sums_of


def rms_norm(kernels: Kernels, x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of rows."""
    return _RmsNorm.apply(kernels, x_TH, weight_H, eps)  # type: ignore[no-any-return,no-untyped-call]


def swiglu(kernels: Kernels, gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up of rows that hold both side by side."""
    return _SwiGLU.apply(kernels, gate_up_TI)  # type: ignore[no-any-return,no-untyped-call]


def rotate(
    kernels: Kernels, x_TW: Tensor, positions_T: Tensor, cos: Tensor, sin: Tensor, *, heads: int
) -> Tensor:
    """Rotates the first `heads` heads of each row. Overwrites `x_TW`, which nobody else may need
    for its own backward (the output of a linear layer is such a tensor)."""
    return _Rotate.apply(kernels, x_TW, positions_T, cos, sin, heads)  # type: ignore[no-any-return,no-untyped-call]


def linear(
    kernels: Kernels, x_TH: Tensor, weights: Sequence[Tensor], bias: Tensor | None = None
) -> Tensor:
    """x W^T + b, of several weights side by side. Gradients of weights that have sums are added
    there (see `hexpo.adapters.models.sums`)."""
    out = _Linear.apply(kernels, x_TH, sums_of(weights), *weights)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias  # type: ignore[no-any-return]


def embedding(weight_VH: Tensor, ids_T: Tensor, padding: int | None) -> Tensor:
    """Rows of a table. A table with a sum has the gradients of these rows added there, and no
    gradient of its own size is made. Args: padding: an id whose row is not trained."""
    sum_VH = sum_of(weight_VH)
    if sum_VH is None or not torch.is_grad_enabled():
        return F.embedding(ids_T, weight_VH, padding)
    return _Embedding.apply(weight_VH, ids_T, sum_VH, padding)  # type: ignore[no-any-return,no-untyped-call]


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        out_TH, rstd_T = kernels.rms_norm_rstd(x_TH, weight_H, eps)
        ctx.save_for_backward(x_TH, weight_H, rstd_T)
        ctx.kernels = kernels
        return out_TH

    @staticmethod
    def backward(ctx: Any, grad_TH: Tensor) -> tuple[None, Tensor, Tensor, None]:
        x_TH, weight_H, rstd_T = ctx.saved_tensors
        dx_TH, dweight_H = ctx.kernels.rms_norm_backward(grad_TH, x_TH, weight_H, rstd_T)
        return None, dx_TH, dweight_H.to(weight_H.dtype), None


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx: Any, kernels: Kernels, gate_up_TI: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_TI)
        ctx.kernels = kernels
        return kernels.swiglu(gate_up_TI)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (gate_up_TI,) = ctx.saved_tensors
        return None, ctx.kernels.swiglu_backward(grad, gate_up_TI)


class _Rotate(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        x_TW: Tensor,
        positions_T: Tensor,
        cos: Tensor,
        sin: Tensor,
        heads: int,
    ) -> Tensor:
        kernels.rotate_(x_TW, positions_T, cos, sin, heads=heads)
        ctx.save_for_backward(positions_T, cos, sin)
        ctx.kernels, ctx.heads = kernels, heads
        ctx.mark_dirty(x_TW)
        return x_TW

    @staticmethod
    def backward(ctx: Any, grad_TW: Tensor) -> tuple[Tensor | None, ...]:
        positions_T, cos, sin = ctx.saved_tensors
        out_TW = grad_TW.contiguous().clone()
        ctx.kernels.rotate_(out_TW, positions_T, cos, sin, heads=ctx.heads, inverse=True)
        return None, out_TW, None, None, None, None


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, x_TH: Tensor, sums: tuple[Tensor, ...], *weights: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x_TH, *weights)
        ctx.kernels, ctx.sums, ctx.sizes = kernels, sums, [len(one) for one in weights]
        return kernels.linear(x_TH, *weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_TH, *weights = ctx.saved_tensors
        kernels, grad = ctx.kernels, grad.contiguous()
        dx_TH = kernels.linear_backward(grad, *weights) if ctx.needs_input_grad[1] else None
        nothing = (None,) * len(ctx.sizes)
        if not any(ctx.needs_input_grad[3:]):
            return None, dx_TH, None, *nothing
        if ctx.sums:
            for part, sum_ in zip(torch.split(grad, ctx.sizes, 1), ctx.sums, strict=True):
                kernels.add_product_(sum_, part, x_TH)
            return None, dx_TH, None, *nothing
        # Where the processor multiplies tiles, transposing first is faster.
        dweight = (kernels.transpose(grad) if kernels.tiles else grad.t()) @ x_TH
        return None, dx_TH, None, *torch.split(dweight, ctx.sizes)


class _Embedding(Function):
    @staticmethod
    def forward(
        ctx: Any, weight_VH: Tensor, ids_T: Tensor, sum_VH: Tensor, padding: int | None
    ) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.sum_VH, ctx.padding = sum_VH, padding
        return F.embedding(ids_T, weight_VH, padding)

    @staticmethod
    def backward(ctx: Any, grad_TH: Tensor) -> tuple[None, ...]:
        (ids_T,) = ctx.saved_tensors
        if ctx.padding is not None:
            grad_TH = grad_TH * (ids_T != ctx.padding)[:, None]
        ctx.sum_VH.index_add_(0, ids_T, grad_TH.to(ctx.sum_VH.dtype))
        return None, None, None, None
