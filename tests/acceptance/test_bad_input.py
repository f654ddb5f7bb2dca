"""What a user can get wrong ends in one clear message, exit code 2 and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure import runs


def refused(command: Any, *, code: int = 2) -> str:
    """The one message of a command that must fail; nothing else is on standard error."""
    assert command.wait() == code, command.out + command.err
    said = command.err
    assert "Traceback" not in said
    assert said.count("error: ") == 1, said
    assert said.startswith("error: "), said
    return str(said)


def test_x(hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path, tiny_model) -> None:
    model = tmp_path / "odd"
    model.mkdir()
    described = json.loads((tiny_model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(described | {"model_type": "nonsense", "architectures": ["Nonsense"]}))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "raising.py").write_text("def reward(prompt, answer, truth):\n    raise ValueError('no such truth')\n")
    (tmp_path / "hanging.py").write_text("def reward(prompt, answer, truth):\n    while True: pass\n")
    config = written()
    out = []
    for name, args in {
        "missing config": ["nowhere.yaml"],
        "missing data": [config, "data.train.options.paths=[nowhere.jsonl]"],
        "wrong column": [config, "data.train.options.prompt=question"],
        "model type": [config, f"model.path={model}"],
        "model missing": [config, "model.path=nowhere"],
        "long": [config, "data.max_prompt_tokens=5", "data.on_long=error"],
        "all long": [config, "data.max_prompt_tokens=5"],
        "empty": [config, "data.train.options.paths=[empty.jsonl]"],
        "reward file": [config, "reward.options.function=nowhere.py:reward"],
        "reward fn": [config, "reward.options.function=raising.py:rewrad"],
        "reward raises": [config, "reward.options.function=raising.py:reward"],
        "reward hangs": [config, "reward.options.function=hanging.py:reward", "reward.options.bound_seconds=0.1"],
        "key": [config, "rollout.smaples=3"],
        "conflicts": [config, "rollout.samples=1", "training.updates_per_batch=3", "rollout.top_p=0.5"],
        "vllm": [config, "rollout.engine=vllm"],
        "megatron": [config, "training.backend=megatron"],
        "math": [config, "reward.kind=math", "reward.options={}"],
        "klzero": [config, "algorithm.kl.where=loss", "algorithm.kl.coefficient=0"],
        "dotted": [config, "algorithm.advantage.name=raising:reward"],
    }.items():
        import time
        t = time.time()
        c = hexpo("train", *args)
        print(f"=== {name} code {c.wait()} {time.time()-t:.1f}s\nOUT {c.out}\nERR {c.err}", file=open("/tmp/acc/bad.txt","a"))

