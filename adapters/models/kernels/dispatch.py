"""One object that runs each kernel natively where it can, and its eager twin where it can't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hexpo.adapters.models.kernels import cached, eager
from hexpo.adapters.models.kernels.cached import Places
from hexpo.adapters.models.kernels.eager import LabelLogprobs
from hexpo.adapters.models.kernels.native import Library, cpu_facts, load_library, load_products
from hexpo.adapters.models.kernels.packed import Packed, pack
from hexpo.domain.errors import Unsupported, WrongColumn

LANES = 16
PAYS = 256
"""Rows from which on a product is worth the packing of its weight."""


class Kernels:
    """The kernels of one head size and group size; see the package's docstring for the list.

    Inputs are made contiguous; what is changed in place must be contiguous already.
    Raises: WrongColumn: a tensor that would be changed in place is not contiguous.
    """

    def __init__(
        self,
        *,
        bfloat16: Library | None,
        float32: Library | None,
        products: Library | None = None,
        tiles: bool = False,
    ) -> None:
        """Args: products: bf16 products that beat the library's on this processor."""
        self._bfloat16, self._float32, self._tiles = bfloat16, float32, tiles
        self._products = products

    @property
    def native(self) -> bool:
        """Whether compiled kernels are in use."""
        return self._bfloat16 is not None or self._float32 is not None

    @property
    def tiles(self) -> bool:
        """Whether the processor has a unit that multiplies tiles (AMX)."""
        return self._tiles

    def pack(self, *weights_NK: Tensor, transposed: bool = False) -> Packed | None:
        """A copy of weights, one after the other, for `Packed.multiply`: x W^T, or transposed x W;
        None where the library's own products are as fast, or the shape is odd."""
        return (
            None
            if self._products is None
            else pack(self._products, weights_NK, transposed=transposed)
        )

    def linear(self, x_TK: Tensor, *weights_NK: Tensor) -> Tensor:
        """x W^T of weights, one after the other."""
        packed = self.pack(*weights_NK) if len(x_TK) >= PAYS else None
        return F.linear(x_TK, _whole(weights_NK)) if packed is None else packed.multiply(x_TK)

    def linear_backward(self, grad_TN: Tensor, *weights_NK: Tensor) -> Tensor:
        """grad W, the gradient of the input of `linear`."""
        packed = self.pack(*weights_NK, transposed=True) if len(grad_TN) >= PAYS else None
        return grad_TN @ _whole(weights_NK) if packed is None else packed.multiply(grad_TN)

    def library(self, x: Tensor) -> Library | None:
        """The compiled glue for a tensor like this; None: the eager twins serve it."""
        if x.device.type != "cpu":
            return None
        if x.dtype == torch.bfloat16:
            return self._bfloat16
        return self._float32 if x.dtype == torch.float32 else None

    def rms_norm(self, x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight of each row."""
        library = self.library(x_TH)
        if library is None:
            return eager.rms_norm(x_TH, weight_H, eps)
        return _rms_norm(library, x_TH, weight_H, eps, None)

    def rms_norm_rstd(self, x_TH: Tensor, weight_H: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`rms_norm`, and 1 / sqrt(mean(x^2) + eps) of each row in fp32 for the backward."""
        library = self.library(x_TH)
        if library is None:
            return eager.rms_norm_rstd(x_TH, weight_H, eps)
        rstd_T = torch.empty(x_TH.shape[0])
        return _rms_norm(library, x_TH, weight_H, eps, rstd_T), rstd_T

    def rms_norm_backward(
        self, grad_TH: Tensor, x_TH: Tensor, weight_H: Tensor, rstd_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the input (its dtype) and of the weight (fp32)."""
        library = self.library(x_TH)
        if library is None:
            return eager.rms_norm_backward(grad_TH, x_TH, weight_H, rstd_T)
        grad_TH, x_TH = grad_TH.contiguous(), x_TH.contiguous()
        dx_TH, dweight_H = torch.empty_like(x_TH), torch.zeros(x_TH.shape[1])
        library.call(
            "rms_norm_backward",
            *(grad_TH, x_TH, weight_H.contiguous(), rstd_T, dx_TH, dweight_H),
            *x_TH.shape,
        )
        return dx_TH, dweight_H

    def swiglu(self, gate_up_TI: Tensor) -> Tensor:
        """silu(gate) * up of rows that hold both side by side."""
        library = self.library(gate_up_TI)
        if library is None:
            return eager.swiglu(gate_up_TI)
        gate_up_TI = gate_up_TI.contiguous()
        out = gate_up_TI.new_empty(gate_up_TI.shape[0], gate_up_TI.shape[1] // 2)
        library.call("swiglu", gate_up_TI, out, *out.shape)
        return out

    def swiglu_backward(self, grad: Tensor, gate_up_TI: Tensor) -> Tensor:
        """Gradient of gate and up, side by side."""
        library = self.library(gate_up_TI)
        if library is None:
            return eager.swiglu_backward(grad, gate_up_TI)
        grad, gate_up_TI = grad.contiguous(), gate_up_TI.contiguous()
        out_TI = torch.empty_like(gate_up_TI)
        library.call("swiglu_backward", grad, gate_up_TI, out_TI, *grad.shape)
        return out_TI

    def rotate_(
        self,
        x_TW: Tensor,
        positions_T: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        heads: int,
        inverse: bool = False,
    ) -> None:
        """Rotate the first `heads` heads of each row in place.

        Args: x_TW: (T, W * head_dim), contiguous. positions_T: int64.
            cos, sin: fp32 (positions, head_dim / 2).
            inverse: turn back (the backward of a rotation).
        """
        _require_contiguous(x_TW, "rotate_")
        head_dim = 2 * cos.shape[1]
        library = self.library(x_TW)
        if library is None:
            x_TWD = x_TW.view(x_TW.shape[0], -1, head_dim)
            eager.rotate_(x_TWD, positions_T, cos, sin, heads=heads, inverse=inverse)
            return
        sign, all_heads = -1.0 if inverse else 1.0, x_TW.shape[1] // head_dim
        library.call(
            "rotate",
            x_TW,
            positions_T.contiguous(),
            cos,
            sin,
            sign,
            x_TW.shape[0],
            heads,
            all_heads,
        )

    def transpose(self, x_RC: Tensor) -> Tensor:
        """A contiguous transposed copy of a matrix."""
        library = self.library(x_RC)
        if library is None:
            return x_RC.t().contiguous()
        x_RC = x_RC.contiguous()
        out_CR = x_RC.new_empty(x_RC.shape[1], x_RC.shape[0])
        library.call("transpose", x_RC, out_CR, *x_RC.shape)
        return out_CR

    def add_product_(self, sum_NK: Tensor, a_TN: Tensor, b_TK: Tensor) -> None:
        """Add a^T b to a sum in place.

        Args: sum_NK: fp32, contiguous. a_TN, b_TK: of one dtype, their rows each contiguous.
        """
        _require_contiguous(sum_NK, "add_product_")
        is_bfloat16 = a_TN.dtype == b_TK.dtype == torch.bfloat16
        if self._products is None or not is_bfloat16 or sum_NK.dtype != torch.float32:
            eager.add_product_(sum_NK, a_TN, b_TK, tiles=self._tiles)
            return
        a_TN = a_TN if a_TN.stride(1) == 1 else a_TN.contiguous()
        b_TK = b_TK if b_TK.stride(1) == 1 else b_TK.contiguous()
        strides = (a_TN.stride(0), b_TK.stride(0))
        self._products.call("add_product", a_TN, b_TK, sum_NK, *strides, len(a_TN), *sum_NK.shape)

    def label_logprobs(
        self, logits_NV: Tensor, labels_N: Tensor, *, temperature: float = 1.0
    ) -> LabelLogprobs:
        """Log-prob of each row's label, log-sum-exp and entropy, of logits / temperature."""
        library = self.library(logits_NV)
        if library is None:
            return eager.label_logprobs(logits_NV, labels_N, temperature)
        logits_NV, rows = logits_NV.contiguous(), logits_NV.shape[0]
        logprobs_N, lse_N, entropy_N = torch.empty(3, rows).unbind()
        library.call(
            "label_logprobs",
            *(logits_NV, labels_N.contiguous(), 1 / temperature, logprobs_N, lse_N, entropy_N),
            *logits_NV.shape,
        )
        return LabelLogprobs(logprobs_N=logprobs_N, lse_N=lse_N, entropy_N=entropy_N)

    def logits_gradient_(
        self,
        logits_NV: Tensor,
        labels_N: Tensor,
        statistics: LabelLogprobs,
        dlogprob_N: Tensor,
        dentropy_N: Tensor | None = None,
        *,
        temperature: float = 1.0,
    ) -> None:
        """Overwrite logits with their gradient.

        The gradient is that of sum_i dlogprob_i logprob_i + dentropy_i entropy_i.

        Args: statistics: what `label_logprobs` gave for these logits at this temperature.
            dlogprob_N, dentropy_N: (N,), any floating dtype.
        """
        _require_contiguous(logits_NV, "logits_gradient_")
        dlogprob_N = dlogprob_N.float().contiguous()
        dentropy_N = None if dentropy_N is None else dentropy_N.float().contiguous()
        library = self.library(logits_NV)
        if library is None:
            eager.logits_gradient_(
                logits_NV, labels_N, statistics, dlogprob_N, dentropy_N, temperature
            )
            return
        library.call(
            "logits_gradient",
            *(logits_NV, labels_N.contiguous(), statistics.lse_N, statistics.entropy_N),
            *(dlogprob_N, dentropy_N, 1 / temperature),
            *logits_NV.shape,
        )

    def cache_dtype(self, like: Tensor) -> torch.dtype:
        """What a cache holds for rows like this: fp32 where the twin of the kernels reads it on a
        CPU, for it computes in that."""
        is_twin = like.device.type == "cpu" and self.library(like) is None
        return torch.float32 if is_twin else like.dtype

    def cached_attention(
        self,
        qkv_RW: Tensor,
        keys: Tensor,
        values: Tensor,
        places: Places,
        *,
        q_norm_D: Tensor | None = None,
        k_norm_D: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """Rotate queries and keys, store keys and values, and attend from each row to places
        0 .. its own of its sequence.

        Args: qkv_RW: (R, (queries + 2 kv_heads) head_dim), contiguous; a row is one token. It is
                overwritten.
            keys, values: one layer of the cache: (blocks, kv_heads, head_dim, 32) and
                (blocks, kv_heads, 32, head_dim), in `cache_dtype`; each block contiguous.
            q_norm_D, k_norm_D: weights of a head-wise RMS norm before the rotation.
        Returns: (R, queries * head_dim), in the dtype of `qkv_RW`.
        """
        _require_contiguous(qkv_RW, "cached_attention")
        library = self.library(qkv_RW)
        if library is None:
            return cached.cached_attention(qkv_RW, keys, values, places, q_norm_D, k_norm_D, eps)
        head_dim, kv_heads = 2 * places.cos.shape[1], keys.shape[1]
        place = (places.tables, places.sequences_R, places.positions_R)
        turn: tuple[Any, ...] = (places.cos, places.sin, q_norm_D, k_norm_D, eps)
        out = qkv_RW.new_empty(qkv_RW.shape[0], qkv_RW.shape[1] - 2 * kv_heads * head_dim)
        sizes = (qkv_RW.shape[0], kv_heads, places.tables.shape[1], keys.stride(0))
        if not places.alone:
            library.call("write_cache", qkv_RW, keys, values, *place, *turn, *sizes)
            turn = (None, None, None, None, 0.0)  # done
        library.call("attend", qkv_RW, keys, values, *place, *turn, out, *sizes, head_dim**-0.5)
        return out

    def run_layers(
        self,
        x_RH: Tensor,
        addresses: Tensor,
        keys: Tensor,
        values: Tensor,
        places: Places,
        *,
        inner: int,
        eps: float,
    ) -> None:
        """Rows through all layers of a decoder, in place; only where `pack` packs.

        Args: x_RH: (R, H) bf16, contiguous.
            addresses: int64 (layers, 9): where a layer's weights lie, in the order of `layers.c`.
            keys, values: all layers of the cache, contiguous.
            inner: width of the gated activation.
        """
        _require_contiguous(x_RH, "run_layers")
        library, products = self.library(x_RH), self._products
        if library is None or products is None:
            raise Unsupported("kernels.run_layers: this processor has no products of its own")
        place = (places.tables, places.sequences_R, places.positions_R, places.cos, places.sin)
        library.call(
            "run_layers",
            *(products.address("multiply"), addresses, len(addresses), x_RH, keys, values),
            *(*place, eps, *x_RH.shape, inner, keys.shape[2], places.tables.shape[1]),
            *(keys.stride(1), keys.stride(0), int(places.alone)),
            (2 * places.cos.shape[1]) ** -0.5,
        )

    def sample(
        self, logits_NV: Tensor, uniforms_N: Tensor, temperatures_N: Tensor, floors_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw one id a row: the first whose distribution function passes the uniform number.

        Exact, with one uniform number a row instead of one an id.

        Args: uniforms_N: float64 in [0, 1). temperatures_N: fp32; 0 takes the first largest.
            floors_N: fp32; logits below it cannot be drawn (-inf: all can).
        Returns: ids (N,) int64, and their log-probs (N,) fp32 under what they were drawn from.
        """
        library = self.library(logits_NV)
        if library is None:
            return eager.sample(logits_NV, uniforms_N, temperatures_N, floors_N)
        logits_NV, rows = logits_NV.contiguous(), logits_NV.shape[0]
        tokens_N, logprobs_N = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        library.call(
            "sample",
            *(logits_NV, uniforms_N, temperatures_N, floors_N, tokens_N, logprobs_N),
            *logits_NV.shape,
        )
        return tokens_N, logprobs_N


def load_kernels(
    *, head_dim: int, group: int, native: bool = True, folder: Path | None = None
) -> Kernels:
    """Kernels for a model's head size and query heads per key-value head.

    Args: native: False forces the eager twins.
        folder: where compiled files are kept; by default the user's cache.
    """
    if not native or head_dim % LANES:
        return Kernels(bfloat16=None, float32=None)
    facts = cpu_facts()
    tiles = "amx_bf16" in facts
    pays = "avx512_bf16" in facts and not tiles
    return Kernels(
        bfloat16=load_library(bfloat16=True, head_dim=head_dim, group=group, folder=folder),
        float32=load_library(bfloat16=False, head_dim=head_dim, group=group, folder=folder),
        products=load_products(folder=folder) if pays else None,
        tiles=tiles,
    )


def _rms_norm(
    library: Library, x_TH: Tensor, weight_H: Tensor, eps: float, rstd_T: Tensor | None
) -> Tensor:
    x_TH = x_TH.contiguous()
    out_TH = torch.empty_like(x_TH)
    library.call("rms_norm", x_TH, weight_H.contiguous(), out_TH, rstd_T, *x_TH.shape, eps)
    return out_TH


def _whole(weights: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(weights) if len(weights) > 1 else weights[0]


def _require_contiguous(x: Tensor, what: str) -> None:
    if not x.is_contiguous():
        raise WrongColumn(f"kernels.{what} changes its first argument in place: make it contiguous")
