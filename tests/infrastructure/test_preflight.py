"""What is tried before hours are spent."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from hexpo.domain.errors import EngineFailed
from hexpo.entrypoints.cli.main import FAILURE, USER_ERROR, run
from hexpo.infrastructure.config.load import load
from hexpo.infrastructure.preflight import Trial, one_sum, preflight

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer."""
    make = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"]
    folder: Path = make(tmp_path_factory.mktemp("models") / "tiny")
    return folder


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """A configuration of one process."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "1 + 1 = ?", "truth": "2"}) + "\n")
    return {
        "model": {"path": str(tiny_model), "precision": "fp32"},
        "data": {
            "max_prompt_tokens": 64,
            "train": {"kind": "jsonl", "options": {"paths": [str(rows)]}},
        },
        "reward": {"kind": "python", "options": {"function": "nowhere:asked"}},
        "rollout": {"max_new_tokens": 8},
        "training": {"prompts_per_step": 1},
    }


def tried(config: dict[str, Any], *overrides: str, bound: float = 100) -> list[Trial]:
    async def main() -> list[Trial]:
        resolved = load(config, overrides=overrides)
        return [one async for one in preflight(resolved.config, bound_seconds=bound)]

    return asyncio.run(main())


def test_a_run_of_one_process_only_answers(tiny: dict[str, Any]) -> None:
    """There is nothing to place and nothing to exchange."""
    place, exchange, answer = tried(tiny)
    assert (place.passed, place.found) == (True, "all in this process")
    assert (exchange.passed, exchange.found) == (True, "one rank: nothing to exchange")
    assert answer.passed
    assert "tokens in" in answer.found
    assert "by embedded" in answer.found


def test_a_shortage_is_the_first_thing_that_is_told(tiny: dict[str, Any]) -> None:
    """O1: with both numbers, and nothing else is tried."""
    (place,) = tried(tiny, "rollout.replicas=40", "cluster.options.cpus=2")
    assert not place.passed
    assert "40 CPUs wanted, 2 free of 2 visible" in place.found
    assert place.seconds < 5


def test_a_trial_that_takes_too_long_is_ended(tiny: dict[str, Any]) -> None:
    """F4: the bound, and what to do."""
    (place,) = tried(tiny, "rollout.replicas=2", "cluster.options.cpus=2", bound=0.05)
    assert not place.passed
    assert "not done after 0.05 s" in place.found


def test_a_wrong_sum_fails_the_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: each rank checks what it got."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: tensor.mul_(3))
    assert one_sum("cpu", rank=0, ranks=2).abilities.device == "cpu"
    with pytest.raises(EngineFailed, match="rank 1: the all-reduce gave 6, not 3"):
        one_sum("cpu", rank=1, ranks=2)


@pytest.mark.slow
@pytest.mark.skipif("HEXPO_ENGINES" not in os.environ, reason="make test-engines")
def test_ranks_and_replicas_are_placed_meet_and_answer(tiny: dict[str, Any]) -> None:
    """P2: processes of their own, all of them ended."""
    place, exchange, answer = tried(
        tiny, "training.ranks=2", "rollout.replicas=1", "cluster.options.oversubscribe=true"
    )
    assert place.found.startswith("3 processes: 3 on ")
    assert exchange.found == "2 ranks by gloo"
    assert answer.passed, answer.found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run.steps=3"], USER_ERROR, "give --preflight FILE"),
        (["--preflight", "there.yaml", "--bound", "0"], USER_ERROR, "--bound"),
        (["--preflight", "there.yaml", "rollout.replicas=40"], FAILURE, "40 CPUs wanted, 2 free"),
    ],
)
def test_the_command_says_what_failed_by_its_exit_code(
    tiny: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    """O1, M1: 2 for what is to be corrected, 1 for what broke."""
    monkeypatch.setattr("hexpo.entrypoints.cli.process.with_environment", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    tiny["cluster"] = {"options": {"cpus": 2}}
    Path("there.yaml").write_text(json.dumps(tiny))
    assert run(["doctor", *arguments]) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
