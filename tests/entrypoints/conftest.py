"""A tiny model, and the tiny example as a configuration of it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure.config.layers import merge, read

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer."""
    folder: Path = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"](
        tmp_path_factory.mktemp("models") / "tiny"
    )
    return folder


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """The tiny example, its paths made absolute and its runs kept in a folder of the test."""
    rows = [str(EXAMPLES / "tiny.jsonl")]
    return merge(
        read(EXAMPLES / "tiny.yaml"),
        {
            "run": {"folder": str(tmp_path / "runs")},
            "model": {"path": str(tiny_model)},
            "data": {
                "train": {"options": {"paths": rows}},
                "evaluation": {"options": {"paths": rows}},
            },
            "reward": {"options": {"function": f"{EXAMPLES / 'tiny_reward.py'}:reward"}},
        },
    )


@pytest.fixture
def tiny_file(tiny: dict[str, Any], tmp_path: Path) -> Path:
    """The same as a file."""
    import yaml

    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path
