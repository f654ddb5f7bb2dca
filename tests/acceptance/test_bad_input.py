"""What a user can get wrong ends in one clear message, exit code 2 and no traceback."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hexpo.infrastructure import runs

BAD: dict[str, tuple[list[str], list[str]]] = {
    "a data file that is not there": (
        ["data.train.options.paths=[nowhere.jsonl]"],
        ["data.train.options.paths", "nowhere.jsonl"],
    ),
    "a column that the rows lack": (
        ["data.train.options.prompt=question"],
        ["rows.jsonl", "row 1", "'question'", "the row has id, prompt, truth"],
    ),
    "a data set without a row": (
        ["data.train.options.paths=[empty.jsonl]"],
        ["empty.jsonl", "no row"],
    ),
    "a model that is not there": (["model.path=nowhere"], ["model.path", "'nowhere'"]),
    "a model of an unknown type": (["model.path=odd"], ["odd", "nonsense"]),
    "a prompt that is too long": (
        ["data.max_prompt_tokens=5", "data.on_long=error"],
        ["'row-0'", "12 ids", "limit is 5"],
    ),
    "only prompts that are too long": (
        ["data.max_prompt_tokens=5"],
        ["no rows left", "all 6", "shortest has 12"],
    ),
    "a reward file that is not there": (
        ["reward.options.function=nowhere.py:reward"],
        ["nowhere.py:reward", "no file"],
    ),
    "a reward function that is not there": (
        ["reward.options.function=raising.py:rewrad"],
        ["no function 'rewrad'", "it has reward"],
    ),
    "a reward that raises at every sample": (
        ["reward.options.function=raising.py:reward"],
        ["grader failed on every sample", "ValueError: no such truth", "raising.py, line 2"],
    ),
    "a reward that hangs at every sample": (
        ["reward.options.function=hanging.py:reward", "reward.options.bound_seconds=0.2"],
        ["grader failed on every sample", "timed out"],
    ),
    "a misspelt key": (["rollout.smaples=3"], ["rollout.smaples", "did you mean 'samples'"]),
    "several conflicts": (
        ["rollout.samples=1", "training.updates_per_batch=3", "rollout.sampling.top_p=0.5"],
        ["3 things are wrong", "rollout.samples", "updates_per_batch", "rollout.sampling.top_p"],
    ),
}


@pytest.fixture
def bad_things(tmp_path: Path, tiny_model: Path) -> None:
    """Files that the cases name."""
    (tmp_path / "empty.jsonl").write_text("")
    head = "def reward(prompt, answer, truth):\n"
    (tmp_path / "raising.py").write_text(f"{head}    raise ValueError('no such truth')\n")
    (tmp_path / "hanging.py").write_text(f"{head}    while True: pass\n")
    odd = shutil.copytree(tiny_model, tmp_path / "odd")
    described = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(described | {"model_type": "nonsense"}))


@pytest.mark.usefixtures("bad_things")
@pytest.mark.parametrize("case", BAD)
def test_it_ends_in_one_clear_message(
    hexpo: Callable[..., Any], written: Callable[..., Path], case: str
) -> None:
    """M1, M3, E2, K: exit code 2, one message with what is wrong and where, no traceback."""
    overrides, parts = BAD[case]
    command = hexpo("train", written(), *overrides)
    assert command.wait() == 2, command.out + command.err
    _require_one_message(command.err, *parts)


def _require_one_message(said: str, *parts: str) -> None:
    assert said.startswith("error: "), said
    assert sum(line.startswith("error: ") for line in said.splitlines()) == 1, said
    assert "Traceback" not in said
    for part in parts:
        assert part in said, said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte. Needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no small disk: {error}")
    if done.returncode:
        pytest.skip(f"no small disk: {done.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_a_save_with_one_message_and_the_run_goes_on_later(
    hexpo: Callable[..., Any], written: Callable[..., Path], tmp_path: Path, small_disk: Path
) -> None:
    """H3: the save before it is intact; with more room the same run is resumed and ends alike."""
    config = written()
    straight = hexpo("train", config, "run.name=straight")
    command = hexpo("train", config, f"run.folder={small_disk}")
    assert command.wait() == 2, command.out + command.err
    _require_one_message(command.err, "disk", "full", str(small_disk))
    folder = small_disk / "tiny"
    assert runs.summary(folder).state is runs.State.FAILED
    saves = {path.name for path in (folder / "checkpoints").glob("*") if path.is_dir()}
    assert saves
    assert all((folder / "checkpoints" / name / "complete.json").is_file() for name in saves)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    again = hexpo("train", "--resume", folder)
    assert again.wait() == 0, again.err
    assert straight.wait() == 0, straight.err
    last = Path("checkpoints", "step-00000006", "engine", "weights.safetensors")
    assert (folder / last).read_bytes() == (tmp_path / "runs" / "straight" / last).read_bytes()


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "in the middle"])
def test_a_disk_without_a_free_byte_hides_no_error(
    hexpo: Callable[..., Any], written: Callable[..., Path], small_disk: Path, begun: bool
) -> None:
    """Trackers are left out, the run's state cannot be written: the last word is what failed."""
    if not begun:
        _fill(small_disk)
    command = hexpo("train", written(), f"run.folder={small_disk}", "run.steps=8",
                    "checkpoint.every=0")  # fmt: skip
    if begun:
        command.until(lambda: runs.summary(small_disk / "tiny").step is not None)
        _fill(small_disk)
    assert command.wait() == 2, command.out + command.err
    _, _, last = command.err.rpartition("\nerror: ")
    assert "is full" in last or "No space left" in last
    assert str(small_disk / "tiny") in last
    assert "Traceback" not in last


def _fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
