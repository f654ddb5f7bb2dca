"""GGUF files of Llama models, read into a fresh Hugging Face module.

transformers reads any family from GGUF, but spends most of its time on the vocabulary's strings;
this reader skips them. Layout: magic, version, counts, key-value pairs, tensor descriptions, then
aligned data (github.com/ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import ModelError

_SCALARS = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
_STRING, _ARRAY = 8, 9
_LONGEST = 64
"""Arrays with more items (vocabularies) are skipped."""

_NAMES = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
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
)


@attrs.frozen
class _Stored:
    shape: tuple[int, ...]
    """Outermost axis first."""
    kind: int
    """A ggml quantisation type."""
    offset: int
    """Of its first byte in the file."""


@attrs.frozen
class Gguf:
    """A file's short metadata and where its tensors lie."""

    path: Path
    metadata: dict[str, Any]
    stored: dict[str, _Stored]

    @property
    def is_plain_llama(self) -> bool:
        """Whether `llama_config` and `weights` know everything that the file says."""
        known = {_hugging_face_name(name) for name in self.stored}
        is_scaled = any(key.startswith("llama.rope.scaling") for key in self.metadata)
        is_llama = self.metadata.get("general.architecture") == "llama"
        return is_llama and not is_scaled and None not in known


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.place = data, 0

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self.place)
        self.place += struct.calcsize(code)
        return value

    def text(self) -> str:
        length = self.take("Q")
        self.place += length
        return self._data[self.place - length : self.place].decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])
        inner, count = self.take("I"), self.take("Q")
        if count <= _LONGEST:
            return [self.value(inner) for _ in range(count)]
        if inner == _STRING:
            for _ in range(count):
                (length,) = struct.unpack_from("<Q", self._data, self.place)
                self.place += 8 + length
        else:
            self.place += count * struct.calcsize(_SCALARS[inner])
        return None


def read_gguf(path: Path) -> Gguf:
    """A file's metadata and tensor table. Raises ModelError: it is no GGUF file, or is cut off."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, _Cursor(data), data[:4])
    except (struct.error, KeyError, ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read as GGUF: {error}") from error


def _parse(path: Path, cursor: _Cursor, magic: bytes) -> Gguf:
    cursor.take("I")
    version = cursor.take("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise ModelError(f"{path} is no GGUF file of version 2 or 3")
    tensors, pairs = cursor.take("Q"), cursor.take("Q")
    metadata = {}
    for _ in range(pairs):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.take("I"))
    described = {}
    for _ in range(tensors):
        name = cursor.text()
        shape = tuple(cursor.take("Q") for _ in range(cursor.take("I")))[::-1]
        described[name] = _Stored(shape, cursor.take("I"), cursor.take("Q"))
    alignment = metadata.get("general.alignment") or 32
    start = math.ceil(cursor.place / alignment) * alignment
    stored = {
        name: attrs.evolve(tensor, offset=start + tensor.offset)
        for name, tensor in described.items()
    }
    return Gguf(path, metadata, stored)


def llama_config(file: Gguf) -> Any:
    """The Hugging Face configuration of a Llama file. Raises ModelError: a key is missing."""
    from transformers import LlamaConfig

    def of(key: str, otherwise: Any = None) -> Any:
        value = file.metadata.get(key, otherwise)
        if value is None:
            raise ModelError(f"{file.path} lacks {key}")
        return value

    heads = of("llama.attention.head_count")
    return LlamaConfig(
        vocab_size=file.stored["token_embd.weight"].shape[0],
        hidden_size=of("llama.embedding_length"),
        intermediate_size=of("llama.feed_forward_length"),
        num_hidden_layers=of("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=of("llama.attention.head_count_kv", heads),
        head_dim=of("llama.rope.dimension_count", of("llama.embedding_length") // heads),
        max_position_embeddings=of("llama.context_length"),
        rms_norm_eps=of("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": of("llama.rope.freq_base", 10000.0),
        },
        tie_word_embeddings="output.weight" not in file.stored,
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=file.metadata.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=file.metadata.get("tokenizer.ggml.padding_token_id"),
    )


def weights(file: Gguf) -> dict[str, Tensor]:
    """De-quantised fp32 weights by their Hugging Face names, made one by one."""
    import numpy as np
    from gguf import GGMLQuantizationType, dequantize
    from gguf.quants import quant_shape_to_byte_shape

    data = np.memmap(file.path, dtype=np.uint8, mode="r")
    heads = int(file.metadata["llama.attention.head_count"])
    kv_heads = int(file.metadata.get("llama.attention.head_count_kv", heads))
    found = {}
    for name, stored in file.stored.items():
        kind = GGMLQuantizationType(stored.kind)
        wide = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
        raw = data[stored.offset :]
        if kind in wide:
            items = math.prod(stored.shape)
            values = raw[: items * np.dtype(wide[kind]).itemsize].view(wide[kind])
            array = values.reshape(stored.shape).astype(np.float32)
        else:
            shape = quant_shape_to_byte_shape(stored.shape, kind)
            array = dequantize(raw[: math.prod(shape)].reshape(shape), kind)
        tensor = torch.from_numpy(np.array(array, dtype=np.float32, copy=True))
        if ".attn_q." in name or ".attn_k." in name:
            tensor = _halves(tensor, heads if ".attn_q." in name else kv_heads)
        found[str(_hugging_face_name(name))] = tensor
    return found


def _hugging_face_name(name: str) -> str | None:
    stem, _, leaf = name.rpartition(".")
    if leaf != "weight":
        return None
    if not stem.startswith("blk."):
        return f"{_NAMES[stem]}.weight" if stem in _NAMES else None
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_NAMES[part]}.weight" if part in _NAMES else None


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Rows from interleaved rotary pairs, as GGUF has them, to halves, as Hugging Face does."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
