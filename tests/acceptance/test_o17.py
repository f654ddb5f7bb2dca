"""Resume equals the straight run, with the real engines and in processes of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexpo.domain.errors import CheckpointError
from hexpo.entrypoints.library import build, resume

LORA = {"rank": 4, "dropout": 0.2}
STEPS = 6
CLOCKED = ("time/", "busy/", "rollout/paus", "bias/trained", "bias/dropped_s")
"""Metrics that the clock makes: no two runs share them."""
REWARD = f"{Path(__file__).parents[2] / 'examples' / 'tiny_reward.py'}:reward"
OPTIONS = {"learning_rate": 0.02, "warmup_steps": 3, "lora": LORA}


def metrics(run: Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics, without what a clock measured."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(CLOCKED)}
        for line in lines
    ]


def rows_by_step(run: Path) -> dict[int, list[str]]:
    """Ids of the prompts of each step, a row each, in order."""
    found: dict[int, list[str]] = {}
    for line in (run / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        found.setdefault(sample["step"], []).append(sample["prompt_id"])
    return found


def engine_files(run: Path, step: int) -> dict[str, bytes]:
    """Weights and optimizer state that were saved at a step."""
    folder = run / "checkpoints" / f"step-{step:08}" / "engine"
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


@pytest.mark.slow
def test_resuming_after_any_step_equals_the_straight_run(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """O17, H1: dropout, 6 rows, batch 2, 2 epochs, AdamW with warm-up; a new process each."""
    config = written(changes={"training": {"options": OPTIONS}})

    def train(name: str, steps: int) -> Any:
        return hexpo("train", config, f"run.name={name}", f"run.steps={steps}")

    straight, dry = tmp_path / "runs" / "straight", tmp_path / "runs" / "dry"
    first = [train("straight", STEPS), hexpo("train", config, "run.name=dry",
             "training.options.lora.dropout=0.0")]  # fmt: skip
    first += [train(f"cut-{step}", step) for step in range(1, STEPS)]
    assert [each.wait() for each in first] == [0] * 7, [each.err for each in first]
    wanted = metrics(straight)
    assert [line["step"] for line in wanted] == [1, 2, 3, 4, 5, 6]
    rates = [line["train/learning_rate"] for line in wanted]
    assert rates == pytest.approx([0.02 / 3, 0.04 / 3, 0.02, 0.02, 0.02, 0.02])
    assert engine_files(dry, STEPS) != engine_files(straight, STEPS), "dropout had no effect"
    cut = {step: tmp_path / "runs" / f"cut-{step}" for step in range(1, STEPS)}
    for step, run in cut.items():
        assert metrics(run) == wanted[:step]
    again = [hexpo("train", "--resume", run, f"run.steps={STEPS}") for run in cut.values()]
    assert [each.wait() for each in again] == [0] * 5, [each.err for each in again]
    for run in cut.values():
        assert metrics(run) == wanted, "exactly the further steps, with equal numbers"
        assert rows_by_step(run) == rows_by_step(straight)
        assert engine_files(run, STEPS) == engine_files(straight, STEPS)
    # At step 3 an epoch ends: the resumed run above went on in the second one's own order.
    epochs = [ids for _, ids in sorted(rows_by_step(straight).items())]
    one, two = epochs[:3], epochs[3:]
    for epoch in (one, two):
        assert sorted({row for ids in epoch for row in ids}) == [f"row-{n}" for n in range(6)]
    assert one != two, "each epoch has an order of its own"


@pytest.fixture(scope="module")
def one_save(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps and its last save."""
    folder = tmp_path_factory.mktemp("saved")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "truth": 0}) + "\n" for n in range(6)))
    config = {
        "run": {"steps": 2, "folder": str(folder)},
        "model": {"path": str(tiny_model)},
        "data": {
            "max_prompt_tokens": 64,
            "train": {"kind": "jsonl", "options": {"paths": [str(rows)]}},
        },
        "reward": {"kind": "python", "options": {"function": str(REWARD), "workers": 1}},
        "rollout": {"samples": 4, "max_new_tokens": 4},
        "training": {"prompts_per_step": 2},
        "trackers": [{"kind": "jsonl"}],
        "platform": {"options": {"threads": 1}},
    }
    build(config, folder=folder / "run").train()
    return folder


@pytest.fixture
def saved(one_save: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    shutil.copytree(one_save, tmp_path / "saved")
    return tmp_path / "saved" / "run"


PARTS = ("loop.json", "engine/moments.safetensors", "engine/weights.safetensors",
         "engine/engine.json", "complete.json")  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_save_without_one_of_its_parts_is_refused_and_the_part_is_named(
    saved: Path, part: str
) -> None:
    """O17, H6: the loader's place, the optimizer, the weights, what names the random numbers."""
    [save] = (saved / "checkpoints").glob("step-*")
    (save / part).unlink()
    with pytest.raises(CheckpointError, match=Path(part).name):
        resume(saved, "run.steps=3").train()


@pytest.mark.parametrize("change", ["rows", "seed", "limit"])
def test_going_on_with_other_data_is_refused(saved: Path, change: str) -> None:
    """O17, E5: another row, order or selection makes the place in the data mean nothing."""
    overrides = {"seed": ["run.seed=1"], "limit": ["data.train.options.limit=4"], "rows": []}
    if change == "rows":
        rows = saved.parent / "rows.jsonl"
        rows.write_text(rows.read_text().replace("3?", "33?"))
        overrides["rows"] = [f"data.train.options.paths=[{rows}]"]
    with pytest.raises(CheckpointError, match="another data set or seed"):
        resume(saved, "run.steps=3", *overrides[change]).train()


def test_resuming_a_finished_run_changes_nothing(saved: Path) -> None:
    """H5: twice; the save, its bytes and the metrics stay."""
    before = {path: path.read_bytes() for path in (saved / "checkpoints").rglob("*.safetensors")}
    lines = metrics(saved)
    for _ in range(2):
        report = resume(saved).train()
        assert report.finished
        assert report.history == []
    after = {path: path.read_bytes() for path in (saved / "checkpoints").rglob("*.safetensors")}
    assert after == before
    assert metrics(saved) == lines
