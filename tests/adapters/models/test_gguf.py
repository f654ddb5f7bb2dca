"""GGUF files, written here by the gguf package and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexpo.adapters.models.gguf import read_gguf
from hexpo.adapters.models.loading import load_config, load_policy
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.domain.errors import ModelError

gguf = pytest.importorskip("gguf")

Tiny = Callable[..., Policy]
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of rotary rows: pairs side by side."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _write(policy: Policy, path: Path, *, kind: Any = None, scaling: bool = False) -> None:
    config = policy.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"word {i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.5] * config.vocab_size)
    writer.add_eos_token_id(2)
    if scaling:
        writer.add_rope_scaling_factor(2.0)

    def add(name: str, source: str) -> None:
        weight = policy.weight(f"{source}.weight").numpy()
        if "attn_q" in name or "attn_k" in name:
            heads = config.num_attention_heads
            weight = _interleaved(weight, heads if "_q" in name else config.num_key_value_heads)
        if kind is None or weight.ndim == 1:
            writer.add_tensor(f"{name}.weight", weight)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(weight, kind), raw_dtype=kind)

    for name, source in (
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ):
        add(name, source)
    for layer in range(config.num_hidden_layers):
        for part, source in _PARTS.items():
            add(f"blk.{layer}.{part}", f"model.layers.{layer}.{source}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_gives_back_the_weights_bit_for_bit(tiny: Tiny, tmp_path: Path) -> None:
    """Names, rotary order, configuration: the same policy as the one written."""
    policy = tiny("llama", attention_bias=False, rms_norm_eps=2.0**-20)
    path = tmp_path / "tiny.gguf"
    _write(policy, path)
    loaded = load_policy(str(path), precision=Precision.FP32)
    assert loaded.digest() == policy.digest()
    assert loaded.spec == policy.spec
    assert loaded.stop_ids == (2,)
    assert load_config(str(path)).vocab_size == 101


def test_quantised_tensors_are_what_the_format_says(tiny: Tiny, tmp_path: Path) -> None:
    """Q8_0: blocks of 32 with one scale; within half a step and the scale's rounding."""
    policy = tiny("llama", attention_bias=False, rms_norm_eps=2.0**-20, intermediate_size=64)
    path = tmp_path / "tiny.gguf"
    _write(policy, path, kind=gguf.GGMLQuantizationType.Q8_0)
    loaded = load_policy(str(path), precision=Precision.FP32)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        blocks = policy.weight(name).reshape(-1, 32)
        step = blocks.abs().amax(1, keepdim=True) / 127
        error = (loaded.weight(name).reshape(-1, 32) - blocks).abs()
        assert bool((error <= 0.57 * step).all())
        assert bool(error.any())
    assert torch.equal(loaded.weight("model.norm.weight"), policy.weight("model.norm.weight"))


def test_rotary_scaling_is_left_to_transformers(tiny: Tiny, tmp_path: Path) -> None:
    """Reading past it would turn long positions wrongly in silence."""
    path = tmp_path / "tiny.gguf"
    _write(tiny("llama", attention_bias=False), path, scaling=True)
    assert not read_gguf(path).is_plain_llama


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    """Something else, or cut off inside the header."""
    for content in (b"not a model at all", b"GGUF\x03\x00\x00\x00\x05", b""):
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"bad\.gguf"):
            read_gguf(path)
