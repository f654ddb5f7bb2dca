"""Decoding of Llama-like models, fast on a CPU: any mix of prompts and single tokens in one pass.

Each fed token is a row. Matrix products run over all rows at once; the attention of a row reads
the blocks of its own sequence. So a prompt that many sequences share is computed once, and a
prompt enters the same way as one more token does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hexpo.adapters.models.decode.cache import BlockCache, Lane, tables_of
from hexpo.adapters.models.decode.decoder import Feed, WeightsMode
from hexpo.adapters.models.decode.linear import Layer, Linear, addresses_of, load_layer, load_linear
from hexpo.adapters.models.kernels import Kernels, Places, rope_tables
from hexpo.adapters.models.spec import DecoderSpec

ROWS = 1024
"""Most rows of one pass, which bounds its memory."""
FIRST_POSITIONS = 512


class LlamaDecoder:
    """A decoder that reads weights by their Hugging Face names.

    Args: weights: gives the present weight of a name; called at construction and by `refresh`.
        mode: LIVE reads the tensors that `weights` gives at each step, so that they must stay
        the same ones; PACKED copies them.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Callable[[str], Tensor],
        kernels: Kernels,
        *,
        mode: WeightsMode,
        dtype: torch.dtype,
    ) -> None:
        self._spec, self._weights, self._kernels = spec, weights, kernels
        self._mode, self._dtype = mode, dtype
        shape = {"layers": spec.layers, "kv_heads": spec.kv_heads, "head_dim": spec.head_dim}
        embedding = weights("model.embed_tokens.weight")
        stored = kernels.cache_dtype(embedding.new_empty(0, dtype=dtype))
        self._cache = BlockCache(**shape, dtype=stored, device=embedding.device)
        self._cos = self._sin = torch.empty(0)
        self.refresh()

    @property
    def vocabulary(self) -> int:
        return self._spec.vocabulary

    @property
    def mode(self) -> WeightsMode:
        return self._mode

    def open(self) -> Lane:
        return Lane()

    def fork(self, lane: Lane, length: int) -> Lane:
        return self._cache.fork(lane, length)

    def close(self, lane: Lane) -> None:
        self._cache.close(lane)

    @torch.no_grad()
    def refresh(self) -> None:
        spec, packed = self._spec, self._mode is WeightsMode.PACKED
        self._embedding = self._own("model.embed_tokens.weight")
        self._norm_H = self._own("model.norm.weight")
        self._layers: list[Layer] = []
        for i in range(spec.layers):
            layer = load_layer(spec, i, self._weights, self._dtype, self._kernels, packed=packed)
            self._layers.append(layer)
        is_compiled = self._kernels.library(self._norm_H) is not None
        self._addresses = addresses_of(self._layers) if is_compiled else None
        head = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
        self._head: Linear = load_linear(
            [self._weights(head)], [], self._dtype, self._kernels, packed=packed
        )
        self._cache.clear()

    def prefill(self, feeds: Sequence[Feed]) -> None:
        self._last_rows(feeds)

    @torch.no_grad()
    def feed(self, feeds: Sequence[Feed]) -> Tensor:
        last_SH = self._kernels.rms_norm(self._last_rows(feeds), self._norm_H, self._spec.eps)
        return self._head(last_SH)

    @torch.no_grad()
    def _last_rows(self, feeds: Sequence[Feed]) -> Tensor:
        """Hidden states of each sequence's last fed id."""
        lanes = [feed.lane for feed in feeds]
        starts = [lane.length for lane in lanes]
        counts = [len(feed.ids) for feed in feeds]
        self._cache.extend(lanes, counts)
        self._rotations(max(lane.length for lane in lanes))
        device = self._embedding.device
        tables = tables_of(lanes, device)
        ids_R = torch.tensor([i for feed in feeds for i in feed.ids], device=device)
        counts_S = torch.tensor(counts, device=device)
        ends_S = counts_S.cumsum(0)
        sequences_R = torch.arange(len(feeds), device=device).repeat_interleave(counts_S)
        offsets_S = torch.tensor(starts, device=device) - (ends_S - counts_S)
        positions_R = torch.arange(len(ids_R), device=device) + offsets_S[sequences_R]
        alone = len(ids_R) == len(feeds)
        hidden = [
            self._rows(ids_R[rows], tables, sequences_R[rows], positions_R[rows], alone=alone)
            for rows in (slice(a, a + ROWS) for a in range(0, len(ids_R), ROWS))
        ]
        return hidden[0] if alone and len(hidden) == 1 else torch.cat(hidden)[ends_S - 1]

    def _rows(
        self,
        ids_R: Tensor,
        tables: Tensor,
        sequences_R: Tensor,
        positions_R: Tensor,
        *,
        alone: bool,
    ) -> Tensor:
        """Hidden states of rows before the last norm. A sequence's rows come in its order, so
        that a row's past is in the cache when it is attended to; `alone`: it has one only."""
        spec, kernels = self._spec, self._kernels
        places = Places(
            tables=tables,
            sequences_R=sequences_R,
            positions_R=positions_R,
            cos=self._cos,
            sin=self._sin,
            alone=alone,
        )
        x_RH = F.embedding(ids_R, self._embedding)
        if self._addresses is not None:
            cache, inner = self._cache.layers, spec.intermediate
            kernels.run_layers(x_RH, self._addresses, *cache, places, inner=inner, eps=spec.eps)
            return x_RH
        for i, layer in enumerate(self._layers):
            keys, values = self._cache.layer(i)
            qkv_RW = layer.qkv(kernels.rms_norm(x_RH, layer.input_norm, spec.eps))
            attended = kernels.cached_attention(
                *(qkv_RW, keys, values, places),
                q_norm_D=layer.q_norm,
                k_norm_D=layer.k_norm,
                eps=spec.eps,
            )
            x_RH = layer.output.add(attended, x_RH)
            gate_up = layer.gate_up(kernels.rms_norm(x_RH, layer.post_norm, spec.eps))
            x_RH = layer.down.add(kernels.swiglu(gate_up), x_RH)
        return x_RH

    def _own(self, name: str) -> Tensor:
        weight = self._weights(name)
        return weight.to(self._dtype, copy=self._mode is WeightsMode.PACKED)

    def _rotations(self, length: int) -> None:
        if length > len(self._cos):
            size = max(FIRST_POSITIONS, 1 << (length - 1).bit_length())
            cos, sin = rope_tables(size, self._spec.head_dim, self._spec.rope_theta)
            device = self._embedding.device
            self._cos, self._sin = cos.to(device), sin.to(device)
