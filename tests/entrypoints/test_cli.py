"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hexpo.entrypoints.cli.main import run
from hexpo.infrastructure import runs
from hexpo.infrastructure.process import RESTARTED


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands of a test are not restarted with the platform's variables; their log handlers go."""
    import logging

    def stay(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr("hexpo.entrypoints.cli.process.with_environment", stay)
    monkeypatch.setenv("COLUMNS", "200")
    before = {name: list(logging.getLogger(name).handlers) for name in ("", "hexpo")}
    yield
    for name, handlers in before.items():
        logger = logging.getLogger(name)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            handler.close()


Captured = pytest.CaptureFixture[str]


def test_help_is_quick_and_loads_neither_torch_nor_tensordict() -> None:
    """`hexpo --help` is asked all the time."""
    code = (
        "import sys, resource; from hexpo.entrypoints.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print([m for m in sys.modules if m in ('torch', 'tensordict', 'transformers')],"
        " used.ru_utime + used.ru_stime, file=sys.stderr)"
    )
    best = min(_seconds(code) for _ in range(3))
    assert best < 0.45  # of CPU, the interpreter's own start included; a loaded machine adds to it


def _seconds(code: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    heavy, _, seconds = done.stderr.strip().splitlines()[-1].rpartition(" ")
    assert heavy == "[]"
    assert "train" in done.stdout
    return float(seconds)


def test_a_user_error_is_one_message_on_stderr_and_exit_code_2(
    capsys: Captured, tiny_file: Path
) -> None:
    """No traceback, unless --debug asks for it."""
    assert run(["train", str(tiny_file), "rollout.smaples=3"]) == 2
    captured = capsys.readouterr()
    assert "did you mean 'samples'" in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert run(["train", str(tiny_file), "rollout.smaples=3", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["trian"],
        ["train", "nowhere.yaml"],
        ["train", "--resume", "nowhere"],
        ["fit"],
        ["evaluate", "nowhere"],
        ["chat", "nowhere"],
        ["export", "nowhere", "model"],
        ["algorithms", "pppo"],
        ["plan", "--nonsense", "x"],
    ],
)
def test_every_command_refuses_nonsense_with_exit_code_2(
    capsys: Captured, arguments: list[str]
) -> None:
    """One clear message."""
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_plan_shows_values_origins_numbers_and_checks(capsys: Captured, tiny_file: Path) -> None:
    """M3, M6."""
    assert run(["plan", str(tiny_file), "run.steps=5"]) == 0
    shown = capsys.readouterr().out
    assert "run.steps" in shown
    assert "override" in shown
    assert "2 prompts x 4 samples" in shown
    assert "nothing is wrong" in shown
    assert run(["plan", str(tiny_file), "rollout.samples=1"]) == 2
    assert "at least 2" in capsys.readouterr().out


def test_algorithms_are_listed_by_kind_and_by_name(capsys: Captured) -> None:
    """Formula, options and source come from the functions themselves."""
    assert run(["algorithms", "ppo"]) == 0
    shown = capsys.readouterr().out
    assert "clip_high=0.2" in shown
    assert "1707.06347" in shown
    assert run(["algorithms"]) == 0
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) > 100
    assert "needs: greedy baseline" in listed
    assert "seq-mean-token-sum-norm  aggregation" in listed
    assert run(["algorithms", "bnpo"]) == 0
    assert "use ppo with the mode token-mean" in capsys.readouterr().out
    assert run(["algorithms", "grop"]) == 2
    assert "did you mean grpo?" in capsys.readouterr().err


def test_doctor_shows_each_technology_with_a_reason(capsys: Captured) -> None:
    """O25: available, or missing with what to do."""
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "rollout/embedded" in shown
    assert "pip install" in shown or "no such adapter" in shown


@pytest.mark.slow
def test_train_evaluate_export_and_the_list_of_runs(
    capsys: Captured, tiny_file: Path, tmp_path: Path
) -> None:
    """One run through every command."""
    assert run(["train", str(tiny_file), "run.steps=2"]) == 0
    shown = capsys.readouterr().out
    for part in ("before", "after", "What is 0 + 1?", "finished step 2"):
        assert part in shown
    folder = tmp_path / "runs" / "tiny"
    assert (folder / "run.log").is_file()
    assert run(["runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "tiny" in shown
    assert "2/2" in shown
    assert "finished" in shown
    kept = {p: p.read_bytes() for p in folder.glob("*") if p.is_file() and p.suffix != ".log"}
    assert run(["evaluate", str(folder)]) == 0
    assert "held-out prompts" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in kept} == kept  # N5: the record is that of the training
    assert run(["export", "tiny", str(tmp_path / "model"), "--runs", str(tmp_path / "runs")]) == 0
    assert (tmp_path / "model" / "config.json").is_file()
    before = (folder / runs.METRICS).read_text()
    assert run(["train", "--resume", str(folder), "run.steps=3"]) == 0
    after = (folder / runs.METRICS).read_text()
    assert after.startswith(before)
    assert json.loads(after.splitlines()[-1])["step"] == 3


def test_fit_learns_the_rows_answers_and_leaves_a_run(
    capsys: Captured, tiny_file: Path, tmp_path: Path
) -> None:
    """X7: the same file, with a loss that reads answers: numbers, a checkpoint, a model."""
    sft = "algorithm.loss.name=sft"
    assert run(["fit", str(tiny_file), sft, "run.steps=2", "model.precision=fp32"]) == 0
    shown = capsys.readouterr().out
    for part in ("loss/fit", "before", "after", "finished step 2"):
        assert part in shown
    folder = tmp_path / "runs" / "tiny"
    assert (folder / "model" / "model.safetensors").is_file()
    (found,) = runs.listing(tmp_path / "runs")
    assert (found.state, found.step, found.reward) == (runs.State.FINISHED, 2, None)
    assert run(["fit", "--resume", str(folder), "run.steps=3"]) == 0
    assert "finished step 3" in capsys.readouterr().out
    assert run(["evaluate", str(folder)]) == 0
    assert "held-out prompts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "loss", "words"), [("train", "sft", "use hexpo fit"), ("fit", "ppo", "hexpo train")]
)
def test_a_loss_of_the_other_use_case_is_refused_before_a_folder_is_made(
    capsys: Captured, tiny_file: Path, tmp_path: Path, command: str, loss: str, words: str
) -> None:
    """M2."""
    assert run([command, str(tiny_file), f"algorithm.loss.name={loss}"]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_generates_nothing_is_not_simulated(capsys: Captured, tiny_file: Path) -> None:
    """M2."""
    assert run(["simulate", str(tiny_file), "algorithm.loss.name=sft", "--gpus", "8"]) == 2
    assert "given answers" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_130_and_the_run_goes_on(tiny_file: Path, tmp_path: Path) -> None:
    """H: a first Ctrl-C ends after the present step, with a checkpoint; no process is left."""
    command = [sys.executable, "-m", "hexpo.entrypoints.cli", "train", str(tiny_file)]
    environment = dict(os.environ) | {RESTARTED: "1"}
    child = subprocess.Popen(
        [*command, "run.steps=100000", "evaluation.every=0"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    folder = tmp_path / "runs" / "tiny"
    try:
        _wait_for(lambda: _steps(folder) >= 3, child)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        if child.poll() is None:
            child.kill()
    assert child.returncode == 130, out + err
    assert "go on with" in out
    found = runs.summary(folder)
    assert found.state is runs.State.INTERRUPTED
    assert not _alive_in_session(child.pid)
    assert run(["train", "--resume", str(folder), f"run.steps={_steps(folder) + 1}"]) == 0
    steps = [json.loads(line)["step"] for line in (folder / runs.METRICS).read_text().splitlines()]
    assert steps == list(range(len(steps)))


def _steps(folder: Path) -> int:
    return runs.summary(folder).step or 0


def _wait_for(condition: Any, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "no step was trained in time"
        time.sleep(0.1)


def _alive_in_session(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_users_function_is_found_in_the_present_folder(
    capsys: Captured, tiny_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`module:function` needs no installed package; the folder comes last and hides nothing."""
    (tmp_path / "our_losses.py").write_text(
        "from torch import Tensor\n"
        "def steady(*, policy_T: Tensor, advantage_T: Tensor) -> Tensor:\n"
        "    'Minus A l.'\n"
        "    return -advantage_T * policy_T\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run(["plan", str(tiny_file), "algorithm.loss.name=our_losses:steady"]) == 0
    assert "our_losses:steady" in capsys.readouterr().out
    assert sys.path[-1] == str(tmp_path)


def test_a_file_system_that_refuses_is_one_message(
    capsys: Captured, tiny_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, wherever it is noticed, says what to do; an unknown failure keeps its trace."""
    import errno

    def full(*_: object) -> int:
        raise failure

    monkeypatch.setattr("hexpo.entrypoints.cli.looking.plan", full)
    failure = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    assert run(["plan", str(tiny_file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: [Errno 28] No space left on device: 'runs/x'; make room")
    failure = OSError(errno.EBADF, "Bad file descriptor")
    with pytest.raises(OSError, match="Bad file"):
        run(["plan", str(tiny_file)])
