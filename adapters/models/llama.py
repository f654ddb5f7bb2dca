"""The fast forward of Llama-like decoders over packed rows, differentiable.

Reads the live parameters of the Hugging Face module, so nothing has to be copied back. Low-rank
adapters run through the module's own projections.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hexpo.adapters.models.attention import Segment, attend
from hexpo.adapters.models.kernels import Kernels, functions, rope_tables
from hexpo.adapters.models.layout import Rows, lay_out
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.models.spec import DecoderSpec
from hexpo.domain.errors import ModelError


class LlamaForward:
    """Hidden states of selected tokens, each prompt of a group run once."""

    def __init__(
        self,
        policy: Policy,
        kernels: Kernels,
        *,
        share_prompts: bool = True,
        checkpointing: bool = False,
    ) -> None:
        """Args: checkpointing: keep only each layer's input, and run it again in backward.

        Raises: ModelError: the model is not Llama-like.
        """
        if policy.spec is None:
            raise ModelError(f"{policy.config.model_type} is not Llama-like: use another forward")
        self._spec: DecoderSpec = policy.spec
        self._model: Any = policy.module.base_model
        self._kernels = kernels
        self._share, self._checkpointing = share_prompts, checkpointing

    def hidden(self, rows: Rows) -> Tensor:
        """(M, H): for each selected token the normalised hidden state that predicts it."""
        layout = lay_out(rows, share=self._share)
        embedding = self._model.embed_tokens
        if not len(layout.tokens_N):
            return embedding.weight.new_zeros(0, self._spec.hidden)  # type: ignore[no-any-return]
        x_NH = functions.embedding(embedding.weight, layout.tokens_N, embedding.padding_idx)
        length = int(layout.positions_N.max()) + 1
        cos, sin = rope_tables(length, self._spec.head_dim, self._spec.rope_theta)
        place = (layout.positions_N, cos, sin, layout.segments)
        for layer in self._model.layers:
            if self._checkpointing and torch.is_grad_enabled():
                x_NH = checkpoint(self._layer, layer, x_NH, *place, use_reentrant=False)
            else:
                x_NH = self._layer(layer, x_NH, *place)
        return self._norm(x_NH[layout.source_M], self._model.norm)

    def _layer(
        self,
        layer: Any,
        x_NH: Tensor,
        positions_N: Tensor,
        cos: Tensor,
        sin: Tensor,
        segments: tuple[Segment, ...],
    ) -> Tensor:
        spec, attention, mlp = self._spec, layer.self_attn, layer.mlp
        normed = self._norm(x_NH, layer.input_layernorm)
        qkv = self._project(normed, attention.q_proj, attention.k_proj, attention.v_proj)
        if spec.qk_norm:
            qkv = self._norm_heads(qkv, attention)
        qkv = functions.rotate(
            self._kernels, qkv, positions_N, cos, sin, heads=spec.heads + spec.kv_heads
        )
        mixed = attend(
            qkv,
            segments,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            scale=spec.head_dim**-0.5,
        )
        x_NH = x_NH + self._project(mixed, attention.o_proj)
        normed = self._norm(x_NH, layer.post_attention_layernorm)
        gated = functions.swiglu(self._kernels, self._project(normed, mlp.gate_proj, mlp.up_proj))
        return x_NH + self._project(gated, mlp.down_proj)

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        return functions.rms_norm(self._kernels, x, norm.weight, self._spec.eps)

    def _norm_heads(self, qkv: Tensor, attention: Any) -> Tensor:
        spec = self._spec
        of_keys = spec.kv_heads * spec.head_dim
        sizes = [spec.heads * spec.head_dim, of_keys, of_keys]
        queries, keys, values = torch.split(qkv, sizes, 1)
        normed = [
            self._norm(part.reshape(-1, spec.head_dim), norm).view(len(qkv), -1)
            for part, norm in ((queries, attention.q_norm), (keys, attention.k_norm))
        ]
        return torch.cat((*normed, values), 1)

    def _project(self, x: Tensor, *linears: Any) -> Tensor:
        """x times several weights, side by side; one product where no adapter sits on them."""
        if any(hasattr(linear, "base_layer") for linear in linears):
            parts = [linear(x) for linear in linears]
            return torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        weights = [linear.weight for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias is not None]
        bias = torch.cat(biases) if biases else None
        return functions.linear(self._kernels, x, weights, bias)
