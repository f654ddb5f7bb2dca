"""A step whose loss is no number changes nothing, and too many of them end the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SPOILER = '''
import torch
from hexpo.domain.advantages import grpo

batches = 0

def spoilt(*, score_S, scored_S, group_S):
    """GRPO; in the batches {steps} the first row's advantage, and so its loss, is NaN."""
    global batches
    batches += bool(len(score_S))  # a check of the options calls it with no row
    advantage_S = grpo(score_S=score_S, scored_S=scored_S, group_S=group_S)
    if batches in {steps}:
        advantage_S[0] = float("nan")
    return advantage_S
'''


def spoil(folder: Path, *steps: int) -> dict[str, Any]:
    """A user's estimator as a module, and the configuration that chooses it."""
    (folder / "spoiler.py").write_text(SPOILER.replace("{steps}", repr(steps)))
    return {"algorithm": {"advantage": {"name": "spoiler:spoilt"}}}


def saved(folder: Path, step: int) -> dict[str, bytes]:
    """Weights and moments of a save."""
    engine = folder / "checkpoints" / f"step-{step:08}" / "engine"
    return {path.name: path.read_bytes() for path in sorted(engine.glob("*.safetensors"))}


def column(folder: Path, name: str) -> list[Any]:
    """One metric of every step."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_one_spoilt_step_changes_nothing_and_the_run_goes_on(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path, clip: float
) -> None:
    """O18, J1, J2, J4: NaN at step 3 of 6; counted once, sample named, later steps normal."""
    config = written(changes=spoil(tmp_path, 3))
    command = hexpo("train", config, f"training.options.clip_norm={clip}")
    assert command.wait() == 0, command.err
    folder = tmp_path / "runs" / "tiny"
    assert saved(folder, 3) == saved(folder, 2)
    for step in (4, 5, 6):
        assert saved(folder, step) != saved(folder, step - 1)
    weights = load_file(folder / "checkpoints" / "step-00000006" / "engine" / "weights.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in weights.values())
    assert column(folder, "train/skipped_steps") == [0, 0, 1, 0, 0, 0]
    # Groups 4 and 5 train at step 3, four rows each: the first row is 16.
    log = (folder / "run.log").read_text()
    assert "after 2 applied ones skipped" in log
    assert "samples 16" in log


def test_what_the_sound_rows_of_a_spoilt_step_gave_is_forgotten(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """O18, J1: rows are run one by one, so only one of 8 is spoilt; the step after it equals that
    of a process which never saw the others' gradients."""
    config = written(changes=spoil(tmp_path, 3))
    alone = "training.options.micro_tokens=1"
    whole = hexpo("train", config, alone, "run.steps=4")
    cut = hexpo("train", config, alone, "run.steps=3", "run.name=cut")
    assert (whole.wait(), cut.wait()) == (0, 0), whole.err + cut.err
    again = hexpo("train", "--resume", tmp_path / "runs" / "cut", "run.steps=4")
    assert again.wait() == 0, again.err
    assert column(tmp_path / "runs" / "tiny", "train/skipped_steps") == [0, 0, 1, 0]
    assert saved(tmp_path / "runs" / "tiny", 4) == saved(tmp_path / "runs" / "cut", 4)


def test_three_spoilt_steps_in_a_row_end_the_run_and_the_last_good_weights_are_kept(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path
) -> None:
    """O18, J2, J3: steps 3, 4, 5; limit 3; one save is kept, and it holds the weights of step 2."""
    config = written()
    straight = hexpo("train", config, "run.name=straight", "run.steps=2")
    config = written("spoilt.yaml", spoil(tmp_path, 3, 4, 5))
    command = hexpo("train", config, "checkpoint.options.keep=1",
                    "training.options.max_skipped_steps=3")  # fmt: skip
    assert straight.wait() == 0, straight.err
    assert command.wait() not in (0, None)
    assert "3 optimizer steps in a row were not finite" in command.err
    assert "samples 32" in command.err
    folder = tmp_path / "runs" / "tiny"
    assert column(folder, "train/skipped_steps") == [0, 0, 1, 1]
    [kept] = [path.name for path in (folder / "checkpoints").glob("step-*")]
    step = int(kept.removeprefix("step-"))
    assert saved(folder, step) == saved(tmp_path / "runs" / "straight", 2)
    weights = load_file(folder / "checkpoints" / kept / "engine" / "weights.safetensors")
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())
    again = hexpo("train", "--resume", folder, "run.steps=5", "algorithm.advantage.name=grpo")
    assert again.wait() == 0, again.err
    assert column(folder, "train/skipped_steps")[-1] == 0
