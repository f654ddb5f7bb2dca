"""The shape of a Llama-like decoder: what the fast paths need to know, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@attrs.frozen(kw_only=True)
class DecoderSpec:
    """A decoder of pre-norm layers: RMSNorm, rotary grouped-query attention, gated SiLU MLP.

    Its weights have the names of Hugging Face's Llama: `model.embed_tokens`, `model.norm`,
    `lm_head` (absent when tied) and, below `model.layers.<i>.`: `input_layernorm`,
    `self_attn.{q,k,v,o}_proj`, `self_attn.{q,k}_norm`, `post_attention_layernorm`,
    `mlp.{gate,up,down}_proj`.
    """

    layers: int
    hidden: int
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; `heads` is a multiple of it."""
    head_dim: int
    intermediate: int
    vocabulary: int
    """Rows of the embedding and of the head."""
    eps: float
    """Added to the mean square inside each RMSNorm."""
    rope_theta: float
    """Base of the rotary frequencies; no scaling."""
    attention_bias: bool
    """The query, key and value projections have biases."""
    output_bias: bool
    """The output projection of the attention has a bias."""
    qk_norm: bool
    """Queries and keys are normalised for each head before the rotation."""
    tied: bool
    """The head is the embedding."""

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.heads // self.kv_heads

    @property
    def qkv(self) -> int:
        """Width of a fused query, key and value row."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


_LLAMA_LIKE = frozenset({"llama", "qwen2", "qwen3"})


def spec_of(config: PretrainedConfig) -> DecoderSpec | None:
    """The spec of a model that is exactly Llama-like; None for every other one, which then runs
    through its Hugging Face module. Rotary scaling, sliding windows, attention dropout, biases in
    the MLP and activations other than SiLU are refused in this way."""
    rope = getattr(config, "rope_parameters", None) or {}
    is_plain = (
        config.model_type in _LLAMA_LIKE
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") == "default"
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and not getattr(config, "mlp_bias", False)
        and not getattr(config, "use_sliding_window", False)
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not config.attention_dropout
    )
    if not is_plain:
        return None
    is_biased = config.model_type == "qwen2" or bool(getattr(config, "attention_bias", False))
    return DecoderSpec(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        eps=config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"]),
        attention_bias=is_biased,
        output_bias=is_biased and config.model_type != "qwen2",
        qk_norm=config.model_type == "qwen3",
        tied=bool(config.tie_word_embeddings),
    )
