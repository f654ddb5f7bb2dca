"""`hexpo simulate`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hexpo.entrypoints.cli.main import USER_ERROR, run

ROOT = Path(__file__).resolve().parents[2]
TINY = str(ROOT / "examples" / "tiny.yaml")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not restarted with the platform's variables, and on a wide screen."""

    def stay(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr("hexpo.entrypoints.cli.process.with_environment", stay)
    monkeypatch.setenv("COLUMNS", "200")


def simulate(*arguments: str, picture: Path) -> int:
    given = ["--gpus", "4", "--steps", "2", "--picture", str(picture)]
    return run(["simulate", TINY, *given, *arguments])


def test_it_shows_step_time_ages_and_bounds_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many devices for what, which staleness, what step time."""
    picture = tmp_path / "here" / "picture.png"
    assert simulate("--split", "3:1", "--staleness", "1", picture=picture) == 0
    shown = capsys.readouterr().out
    assert "3:1" in shown
    for word in ("step s", "Little", "busy G", "age", "T waits", "G idle"):
        assert word in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_terminal_of_80_columns_shows_every_number_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut number is none."""
    monkeypatch.setenv("COLUMNS", "80")
    assert simulate("--sweep", picture=tmp_path / "p.png") == 0
    assert "…" not in capsys.readouterr().out


def test_a_sweep_names_the_fastest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Colocated, splits, stalenesses and orders side by side."""
    assert simulate("--sweep", picture=tmp_path / "p.png") == 0
    shown = capsys.readouterr().out
    assert "fastest:" in shown
    assert "completion" in shown
    assert "all" in shown


def test_lengths_of_a_file_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of 2 tokens each, whatever the budget is."""
    lengths = tmp_path / "lengths"
    lengths.write_text("2\n2\n")
    assert simulate("--lengths", str(lengths), picture=tmp_path / "p.png") == 0
    assert "2 tokens on" in capsys.readouterr().out


def test_speeds_and_lengths_of_a_run_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass of 0.5 s: answers of 4 tokens take 2 s, whatever is not measured."""
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    steps = [
        {"step": n, "time/wait": 0.5 * n, "time/train": 0.0, "time/publish": 0.25} for n in (3, 4)
    ]
    rows = [
        {"step": n, "phase": "train", "tokens": [1] * (3 + n), "prompt_length": 3} for n in (3, 4)
    ]
    (run_folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    (run_folder / "samples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ("--from-run", str(run_folder), "--split", "2:2", "--staleness", "0")
    assert simulate(*given, picture=tmp_path / "p.png") == 0
    shown = capsys.readouterr().out
    assert "4 tokens on average" in shown
    assert "2.25" in shown


@pytest.mark.parametrize("on_update", ["keep", "continue", "drain"])
def test_what_an_update_does_to_running_answers_is_played(
    tmp_path: Path, on_update: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """F8: each mode, and both sides in turns with something ahead."""
    given = ("--staleness", "1", f"asynchrony.on_update={on_update}")
    assert simulate(*given, "--split", "2:2", picture=tmp_path / "p.png") == 0
    assert simulate(*given, "--split", "colocated", picture=tmp_path / "p.png") == 0
    assert "2:2" in capsys.readouterr().out


def test_more_parts_than_a_batch_has_are_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """L1."""
    assert simulate("--parts", "99", picture=tmp_path / "p.png") == USER_ERROR
    assert "--parts 99" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["3:2", "4", "all", "4:0"])
def test_an_impossible_split_is_one_clear_error(
    tmp_path: Path, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """L1: exit code 2, a message, no traceback."""
    assert simulate("--split", split, picture=tmp_path / "p.png") == USER_ERROR
    assert "split" in capsys.readouterr().err
