"""A plain function in the place of a configured reward."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

import pytest
from dependency_injector import providers

from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.training import SimulatedTraining
from hexpo.adapters.simulated.world import SimulatedTokenizer
from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.library import build, resume


def by_length(answer: str) -> float:
    return float(len(answer))


def test_a_function_may_be_given_as_the_reward(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is graded in processes, and a resumed run names the same file."""
    (tmp_path / "by_length.py").write_text("def score(answer):\n    return 0.25\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("by_length").score
    del tiny["reward"]
    run = build(tiny, "run.steps=1", reward=function)
    named = run.config.reward
    assert (named.kind, named.options["function"]) == ("python", f"{tmp_path}/by_length.py:score")
    run.container.rollout.override(SimulatedRollout(lambda request: Script(seconds=0.001)))
    run.container.training.override(providers.Singleton(SimulatedTraining, run.container.store))
    run.container.tokenizer.override(providers.Singleton(SimulatedTokenizer))
    assert run.train().history[-1]["reward/mean"] == 0.25
    assert resume(run.folder).config.reward == named


def test_a_function_that_no_grader_could_load_is_refused(tiny: dict[str, Any]) -> None:
    """What, and what to do; the configured options of a python reward stay."""
    with pytest.raises(ConfigurationError, match=r"<lambda> cannot be loaded.*top level"):
        build(tiny, reward=lambda answer: 1.0)
    with pytest.raises(ConfigurationError, match=r"int is neither a function nor"):
        build(tiny, reward=cast("Any", 3))
    tiny["reward"] = {"kind": "python", "options": {"function": "none.py:none", "workers": 3}}
    assert build(tiny, reward=by_length).config.reward.options["workers"] == 3
