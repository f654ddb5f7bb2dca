"""Linear layers of a decoder: the trainer's own tensors, or packed copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from hexpo.adapters.models.kernels import Kernels, Packed
from hexpo.adapters.models.spec import DecoderSpec


class Linear(Protocol):
    """x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x W^T + b."""
        ...


@attrs.frozen(eq=False)
class LiveLinear:
    """One product for each tensor; results side by side."""

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        biases: Sequence[Tensor | None] = self.biases or [None] * len(self.weights)
        if len(self.weights) == 1:
            return F.linear(x, self.weights[0], biases[0])
        return torch.cat([F.linear(x, w, b) for w, b in zip(self.weights, biases, strict=True)], -1)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x) + residual


@attrs.frozen(eq=False)
class PackedLinear:
    """One product of the fused tensors, in oneDNN's own layout."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise
        return linear(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        linear = torch.ops.mkldnn._linear_pointwise.binary
        return linear(x, residual, self.weight, self.bias, "add")  # type: ignore[no-any-return]


@attrs.frozen(eq=False)
class TiledLinear:
    """One product of the fused tensors, in this library's own layout."""

    weight: Packed
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.weight.multiply(x, self.bias)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        more = residual if self.bias is None else residual + self.bias
        return self.weight.multiply(x, more)


@attrs.frozen(kw_only=True, eq=False)
class Layer:
    """The weights of one layer."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


def addresses_of(layers: Sequence[Layer]) -> Tensor | None:
    """int64 (layers, 9): where weights lie, in the order of `layers.c`; None where one is not in
    this library's layout, or has a bias on its way back to the rows."""

    def row(layer: Layer) -> list[int] | None:
        products = [layer.qkv, layer.output, layer.gate_up, layer.down]
        tiled = [one for one in products if isinstance(one, TiledLinear)]
        if len(tiled) < len(products) or any(one.bias is not None for one in tiled[1:]):
            return None
        vectors = (layer.input_norm, layer.post_norm, layer.q_norm, layer.k_norm, tiled[0].bias)
        tensors = [*vectors, *(one.weight.panels for one in tiled)]
        return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]

    rows = [row(layer) for layer in layers]
    found = [one for one in rows if one is not None]
    return torch.tensor(found) if len(found) == len(rows) else None


def can_pack(like: Tensor) -> bool:
    """Whether this build of torch packs linear layers for this device."""
    return like.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def load_linear(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    dtype: torch.dtype,
    kernels: Kernels,
    *,
    packed: bool,
) -> Linear:
    """A linear layer of tensors that take the same input."""
    if not packed:
        return LiveLinear([w.to(dtype) for w in weights], [b.to(dtype) for b in biases])
    own = [w.to(dtype) for w in weights]
    bias = torch.cat([b.to(dtype) for b in biases]) if biases else None
    if (tiled := kernels.pack(*own)) is not None:
        return TiledLinear(tiled, bias)
    fused = torch.cat(own) if len(own) > 1 else own[0]
    if not can_pack(fused):
        return LiveLinear([fused], [] if bias is None else [bias])
    return PackedLinear(torch.ops.mkldnn._reorder_linear_weight(fused.contiguous(), None), bias)


def load_layer(
    spec: DecoderSpec,
    index: int,
    weights: Callable[[str], Tensor],
    dtype: torch.dtype,
    kernels: Kernels,
    *,
    packed: bool,
) -> Layer:
    """Layer number `index`, read by its Hugging Face names."""
    prefix = f"model.layers.{index}."

    def linear(names: Sequence[str], *, bias: bool = False) -> Linear:
        w = [weights(f"{prefix}{name}_proj.weight") for name in names]
        b = [weights(f"{prefix}{name}_proj.bias") for name in names] if bias else []
        return load_linear(w, b, dtype, kernels, packed=packed)

    def norm(name: str) -> Tensor:
        return weights(f"{prefix}{name}.weight").to(dtype, copy=packed)

    return Layer(
        input_norm=norm("input_layernorm"),
        qkv=linear([f"self_attn.{x}" for x in "qkv"], bias=spec.attention_bias),
        q_norm=norm("self_attn.q_norm") if spec.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if spec.qk_norm else None,
        output=linear(["self_attn.o"], bias=spec.output_bias),
        post_norm=norm("post_attention_layernorm"),
        gate_up=linear(["mlp.gate", "mlp.up"]),
        down=linear(["mlp.down"]),
    )
