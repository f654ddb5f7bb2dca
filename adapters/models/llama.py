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
from hexpo.adapters.models.layout import Layout, Ran, Rows, lay_out
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
        if not len(layout.tokens_N):
            weight: Tensor = self._model.embed_tokens.weight
            return weight.new_zeros(0, self._spec.hidden)
        x_NH = self._run(self._embed(layout.tokens_N), layout.positions_N, layout.segments)
        return self._norm(x_NH[layout.source_M], self._model.norm)

    def ran(self, rows: Rows, *, detached: bool) -> Ran:
        """The same hidden states, with those of every run token beside them; some have to run.

        Args: detached: the latter are constants, and the former's gradient is bit for bit that of
            `hidden`.
        """
        layout = lay_out(rows, share=self._share)
        x_NH = self._run(self._embed(layout.tokens_N), layout.positions_N, layout.segments)
        hidden_MH = self._norm(x_NH[layout.source_M], self._model.norm)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detached):
            hidden_NH = self._norm(x_NH, self._model.norm)
        return Ran(layout=layout, hidden_MH=hidden_MH, hidden_NH=hidden_NH)

    def embed(self, tokens_N: Tensor) -> Tensor:
        """(N, H): what the first layer reads."""
        return self._embed(tokens_N)

    def layer(self, layer: Any, x_NH: Tensor, layout: Layout) -> Tensor:
        """(N, H): run tokens through a layer of the model's kind."""
        length = int(layout.positions_N.max()) + 1
        cos, sin = rope_tables(length, self._spec.head_dim, self._spec.rope_theta)
        return self._through(layer, x_NH, layout.positions_N, cos, sin, layout.segments)

    def _embed(self, tokens_N: Tensor) -> Tensor:
        embedding = self._model.embed_tokens
        return functions.embedding(embedding.weight, tokens_N, embedding.padding_idx)

    def _run(self, x_NH: Tensor, positions_N: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        """All layers."""
        length = int(positions_N.max()) + 1
        cos, sin = rope_tables(length, self._spec.head_dim, self._spec.rope_theta)
        place = (positions_N, cos, sin, segments)
        for layer in self._model.layers:
            x_NH = self._through(layer, x_NH, *place)
        return x_NH

    def _through(self, layer: Any, x_NH: Tensor, *place: Any) -> Tensor:
        if self._checkpointing and torch.is_grad_enabled():
            return checkpoint(self._layer, layer, x_NH, *place, use_reentrant=False)  # type: ignore[no-any-return]
        return self._layer(layer, x_NH, *place)

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
        x_NH = x_NH + self._project(self._attend(qkv, segments), attention.o_proj)
        normed = self._norm(x_NH, layer.post_attention_layernorm)
        gated = functions.swiglu(self._kernels, self._project(normed, mlp.gate_proj, mlp.up_proj))
        return x_NH + self._project(gated, mlp.down_proj)

    def _attend(self, qkv_NW: Tensor, segments: tuple[Segment, ...], *, share: int = 1) -> Tensor:
        """Args: share: `qkv_NW` holds one of so many equal parts of the heads."""
        spec = self._spec
        return attend(
            qkv_NW,
            segments,
            heads=spec.heads // share,
            kv_heads=spec.kv_heads // share,
            scale=spec.head_dim**-0.5,
            kernels=self._kernels,
        )

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
