"""Differentiable kernels for training."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from hexpo.adapters.models.kernels.dispatch import Kernels


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


def linear(kernels: Kernels, x_TH: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b. Where the processor multiplies tiles, the weight's gradient is made from an
    explicitly transposed output gradient, which is faster there."""
    out = _Linear.apply(kernels, x_TH, weight)  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias  # type: ignore[no-any-return]


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
    def forward(ctx: Any, kernels: Kernels, x_TH: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x_TH, weight)
        ctx.kernels = kernels
        return F.linear(x_TH, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        x_TH, weight = ctx.saved_tensors
        grad = grad.contiguous()
        dx_TH = grad @ weight if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[2]:
            return None, dx_TH, None
        is_tiled = ctx.kernels.tiles
        return None, dx_TH, (ctx.kernels.transpose(grad) if is_tiled else grad.t()) @ x_TH
