"""A tiny model, and a configuration of it that trains two steps in a moment."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer."""
    make = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"]
    folder: Path = make(tmp_path_factory.mktemp("models") / "tiny")
    return folder


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one of the same family."""
    make = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"]
    folder: Path = make(tmp_path_factory.mktemp("models") / "other", seed=1)
    return folder


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Six rows of two sources, two a step, four short answers each; nothing evaluated or kept."""
    rows = [
        {"id": f"row-{n}", "prompt": f"{n} + 1 = ?", "truth": str(n + 1), "source": f"task-{n % 2}"}
        for n in range(6)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "run": {"folder": str(tmp_path / "runs"), "steps": 2},
        "model": {"path": str(tiny_model), "precision": "fp32"},
        "data": {
            "max_prompt_tokens": 64,
            "train": {"kind": "jsonl", "options": {"paths": [str(data)]}},
        },
        "reward": {
            "kind": "python",
            "options": {"function": f"{EXAMPLES / 'tiny_reward.py'}:reward", "workers": 1},
        },
        "rollout": {"samples": 4, "max_new_tokens": 8},
        "training": {"prompts_per_step": 2, "options": {"learning_rate": 1e-2}},
        "checkpoint": {"every": 0, "export": False},
        "trackers": [{"kind": "jsonl"}],
    }
