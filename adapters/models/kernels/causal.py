"""Causal attention of runs of tokens, by `attention.c`: the twin of `attention.attend`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hexpo.adapters.models.kernels.native import Library


def causal(
    library: Library, qkv_NW: Tensor, runs_R4: Tensor, kv_heads: int, scale: float
) -> Tensor:
    """Each token attends to its run up to itself, and to the prefix that the run continues.

    Args: library: compiled for the dtype of `qkv_NW`, its head size and its group size.
        qkv_NW: rotated queries and keys, and values, of N tokens.
        runs_R4: int64: first token and tokens of a run; first token and tokens of its prefix.
    Returns: (N, query heads x head size).
    """
    return _Causal.apply(library, qkv_NW, runs_R4, kv_heads, scale)  # type: ignore[no-any-return,no-untyped-call]


class _Causal(Function):
    @staticmethod
    def forward(
        ctx: Any, library: Library, qkv_NW: Tensor, runs_R4: Tensor, kv_heads: int, scale: float
    ) -> Tensor:
        qkv_NW = qkv_NW.contiguous()
        head_dim, queries = library.head_dim, library.group * kv_heads
        out = qkv_NW.new_empty(len(qkv_NW), queries * head_dim)
        lse = torch.empty(len(qkv_NW), queries)
        library.call("attention", qkv_NW, runs_R4, out, lse, len(runs_R4), kv_heads, scale)
        ctx.save_for_backward(qkv_NW, runs_R4, out, lse)
        ctx.library, ctx.kv_heads, ctx.scale = library, kv_heads, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv_NW, runs_R4, out, lse = ctx.saved_tensors
        dqkv_NW = torch.empty_like(qkv_NW)
        ctx.library.call(
            "attention_backward",
            *(qkv_NW, runs_R4, out, grad.contiguous(), lse, dqkv_NW),
            *(len(runs_R4), ctx.kv_heads, len(qkv_NW), ctx.scale),
        )
        return None, dqkv_NW, None, None, None
