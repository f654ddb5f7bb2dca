"""Forwards through the Hugging Face module, for families without a fast path.

`PackedForward` runs rows end to end with an attention of our own, registered with transformers
under a name of our own; `PaddedForward` runs them as transformers' authors meant, in a padded
table, and is right for every family.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hexpo.adapters.models.attention import attend
from hexpo.adapters.models.layout import Layout, Ran, Rows, lay_out, needed
from hexpo.adapters.models.policy import Policy

PACKED_ATTENTION = "hexpo_packed"
"""Our attention's name in transformers' tables."""


def install_packed_attention(policy: Policy) -> None:
    """Let the module use `PACKED_ATTENTION`: where a call brings segments it keeps packed rows
    apart, for every other call it is transformers' `sdpa`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(PACKED_ATTENTION, _packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
    policy.module.set_attn_implementation(PACKED_ATTENTION)


def _packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    hexpo_segments: Any = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if hexpo_segments is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
        return out, None
    heads, kv_heads, tokens = query.shape[1], key.shape[1], query.shape[2]
    qkv_NW = torch.cat((query[0], key[0], value[0])).transpose(0, 1).reshape(tokens, -1)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    out_NW = attend(qkv_NW, hexpo_segments, heads=heads, kv_heads=kv_heads, scale=scale)
    return out_NW.view(1, tokens, heads, -1), None


class PackedForward:
    """Hidden states of selected tokens; needs `install_packed_attention` first."""

    def __init__(
        self, policy: Policy, *, share_prompts: bool = True, checkpointing: bool = False
    ) -> None:
        self._model: Any = policy.module.base_model
        self._share = share_prompts
        _set_checkpointing(policy, on=checkpointing)

    def hidden(self, rows: Rows) -> Tensor:
        """(M, H): for each selected token the normalised hidden state that predicts it."""
        layout = lay_out(rows, share=self._share)
        return self._all(layout)[layout.source_M]

    def ran(self, rows: Rows, *, detached: bool) -> Ran:
        """The same hidden states, with those of every run token beside them; some have to run.

        Args: detached: the latter are constants.
        """
        layout = lay_out(rows, share=self._share)
        hidden_NH = self._all(layout)
        return Ran(
            layout=layout,
            hidden_MH=hidden_NH[layout.source_M],
            hidden_NH=hidden_NH.detach() if detached else hidden_NH,
        )

    def embed(self, tokens_N: Tensor) -> Tensor:
        """(N, H): what the first layer reads."""
        return self._model.embed_tokens(tokens_N)  # type: ignore[no-any-return]

    def layer(self, layer: Any, x_NH: Tensor, layout: Layout) -> Tensor:
        """(N, H): run tokens through a layer of the model's kind."""
        place = {**_call(layout), "position_ids": layout.positions_N[None]}
        rotary = self._model.rotary_emb(x_NH[None], position_ids=layout.positions_N[None])
        return layer(x_NH[None], position_embeddings=rotary, **place)[0]  # type: ignore[no-any-return]

    def _all(self, layout: Layout) -> Tensor:
        out = self._model(
            input_ids=layout.tokens_N[None], position_ids=layout.positions_N[None], **_call(layout)
        )
        return out.last_hidden_state[0]  # type: ignore[no-any-return]


def _call(layout: Layout) -> dict[str, Any]:
    # A mask with four axes passes through transformers unread: no T x T mask is built.
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    return {"attention_mask": mask, "use_cache": False, "hexpo_segments": layout.segments}


class PaddedForward:
    """Hidden states of selected tokens, from a table as wide as its longest row."""

    def __init__(self, policy: Policy, *, checkpointing: bool = False) -> None:
        self._model: Any = policy.module.base_model
        _set_checkpointing(policy, on=checkpointing)

    def hidden(self, rows: Rows) -> Tensor:
        """(M, H): for each selected token the normalised hidden state that predicts it."""
        lengths = needed(rows).clamp(min=1)
        width = int(lengths.max())
        starts = rows.lengths_S.cumsum(0) - rows.lengths_S
        pieces = [
            slice(start, start + length)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        tokens = pad_sequence([rows.tokens_T[piece] for piece in pieces], batch_first=True)
        positions = pad_sequence([rows.positions_T[piece] for piece in pieces], batch_first=True)
        mask = torch.arange(width)[None] < lengths[:, None]
        out = self._model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask.long(),
            use_cache=False,
        )
        owner = torch.repeat_interleave(rows.lengths_S)
        before = torch.arange(len(owner)) - starts[owner] - 1
        hidden: Tensor = out.last_hidden_state
        return hidden.flatten(0, 1)[(owner * width + before)[rows.selected_T]]


def _set_checkpointing(policy: Policy, *, on: bool) -> None:
    if not on:
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    policy.module.gradient_checkpointing_enable({"use_reentrant": False})
    for module in policy.module.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # it checkpoints in training mode only; its parts stay in eval
