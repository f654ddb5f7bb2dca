"""The page about conversations: its agent trains, and its row is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from hexpo.application.agents.dialogue import script_of
from hexpo.domain.trajectory import Prompt
from hexpo.entrypoints.library import build

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "turns.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_agent_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its dotted path, and is what a run plays with."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "patient.py").write_text(blocks("python")[0])
    monkeypatch.syspath_prepend(tmp_path)
    from runpy import run_path

    model = run_path(str(ROOT / "examples" / "make_tiny.py"))["make"](tmp_path / "tiny")
    run = build(
        ROOT / "examples" / "tiny.yaml",
        f"model.path={model}",
        f"run.folder={tmp_path / 'runs'}",
        "run.steps=1",
        "evaluation.every=0",
        "rollout.agent=my_package.patient",
    )
    assert type(run.container.agent()).__name__ == "Longest"
    assert run.train().finished


def test_the_pages_settings_and_its_row_are_sound() -> None:
    """A key that is none would be refused."""
    first, second = (yaml.safe_load(block) for block in blocks("yaml"))
    assert first["rollout"]["agent"] == "dialogue"
    assert second["algorithm"]["terms"][0]["loss"] == "observation_nll"
    row = json.loads(blocks("json")[0])
    prompt = Prompt(id="p", messages=(), extra={"follow_ups": row["follow_ups"]})
    said = script_of(prompt, "follow_ups")
    assert [one.content for one in said] == ["Are you sure?", "Now just the number."]
