"""A configuration that is sound, made of files that are small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure.config.load import Resolved, load

MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


@pytest.fixture
def mapping(tmp_path: Path) -> dict[str, Any]:
    """The content of a configuration file that nothing is wrong with."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1?", "truth": "2"}\n')
    source = {"kind": "jsonl", "options": {"paths": [str(rows)]}}
    return {
        "run": {"folder": str(tmp_path / "runs")},
        "model": {"path": str(model)},
        "data": {"train": source, "evaluation": source, "max_prompt_tokens": 64},
        "reward": {"kind": "python", "options": {"function": "math.sqrt"}},
        "rollout": {"max_new_tokens": 32},
    }


Load = Callable[..., Resolved]


@pytest.fixture
def resolve(mapping: dict[str, Any]) -> Load:
    """Loads that configuration with overrides."""
    return lambda *overrides: load(mapping, overrides=overrides)
