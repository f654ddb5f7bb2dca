"""A tiny model, a configuration that trains it in seconds, and commands in processes of their
own."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hexpo.adapters.platform import cpu
from hexpo.infrastructure.config.layers import merge
from hexpo.infrastructure.process import QUIET, RESTARTED

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 6
WAIT = 100.0


class Command:
    """A `hexpo` command in a process of its own."""

    def __init__(self, nursery: Nursery, pid: int, folder: Path, name: str) -> None:
        self._nursery, self.pid, self._folder, self._name = nursery, pid, folder, name
        self._code: int | None = None

    @property
    def out(self) -> str:
        """What it printed so far."""
        return (self._folder / f"{self._name}.out").read_text()

    @property
    def err(self) -> str:
        """What it said on standard error so far."""
        return (self._folder / f"{self._name}.err").read_text()

    @property
    def code(self) -> int | None:
        """Its exit code (minus the signal that killed it); None while it runs."""
        if self._code is None:
            self._code = self._nursery.ask({"poll": self.pid})["code"]
        return self._code

    def wait(self, seconds: float = WAIT) -> int:
        """Its exit code. Fails if it does not end in time."""
        deadline = time.monotonic() + seconds
        while (code := self.code) is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                pytest.fail(f"{self._name} did not end in {seconds} s: {self.out}{self.err}")
            time.sleep(0.02)
        return code

    def until(self, condition: Callable[[], bool], seconds: float = WAIT) -> None:
        """Wait for something that it does. Fails if it ends before that."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.code is None, f"{self._name} ended: {self.out}{self.err}"
            assert time.monotonic() < deadline, f"{self._name} does not go on"
            time.sleep(0.01)

    def send(self, number: int) -> None:
        """Send a signal, as a terminal or the system does: to this process alone."""
        if self.code is None:
            os.kill(self.pid, number)


class Nursery:
    """Makes processes; see the module of that name."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._count = 0
        self._made: list[Command] = []

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dict(request)) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def run(self, arguments: Sequence[str], folder: Path) -> Command:
        """Start a command with `folder` as its working folder."""
        self._count += 1
        name = f"command-{self._count}"
        request = {
            "run": [*arguments],
            "folder": str(folder),
            "out": str(folder / f"{name}.out"),
            "err": str(folder / f"{name}.err"),
        }
        made = Command(self, self.ask(request)["pid"], folder, name)
        self._made.append(made)
        return made

    def end(self) -> None:
        """Kill what a failed test left."""
        for made in self._made:
            made.send(signal.SIGKILL)


Run = Callable[..., Command]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks; its thread runtime is set up as a command's own start does it."""
    platform = cpu.build(cpu.Config(threads=1))
    environment = {**os.environ, **platform.environment(), RESTARTED: "1", "COLUMNS": "200"}
    environment |= {"HF_HUB_OFFLINE": "1", "TERM": "dumb", **dict(QUIET)}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("nursery.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    made = Nursery(process)
    try:
        yield made
    finally:
        made.end()
        process.communicate(timeout=30)


@pytest.fixture
def hexpo(nursery: Nursery, tmp_path: Path) -> Run:
    """`hexpo("train", "tiny.yaml", ...)` starts a command in the test's folder."""

    def run(*arguments: str | Path) -> Command:
        return nursery.run([str(argument) for argument in arguments], tmp_path)

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer."""
    folder: Path = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"](
        tmp_path_factory.mktemp("models") / "tiny"
    )
    return folder


@pytest.fixture
def tiny(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Six rows, two a step, four short answers each, a save at each step; no evaluation."""
    rows = [{"id": f"row-{n}", "prompt": f"{n} + 1 = ?", "truth": str(n + 1)} for n in range(ROWS)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "run": {"name": "tiny", "folder": str(tmp_path / "runs"), "steps": 6},
        "model": {"path": str(tiny_model)},
        "data": {
            "max_prompt_tokens": 64,
            "train": {"kind": "jsonl", "options": {"paths": [str(data)]}},
        },
        "reward": {
            "kind": "python",
            "options": {"function": f"{EXAMPLES / 'tiny_reward.py'}:reward", "workers": 1},
        },
        "rollout": {"samples": 4, "max_new_tokens": 8},
        "training": {"prompts_per_step": 2, "options": {"learning_rate": 1e-2}},
        "checkpoint": {"every": 1, "options": {"keep": 6}},
        "trackers": [{"kind": "jsonl"}],
        "platform": {"options": {"threads": 1}},
    }


Write = Callable[..., Path]


@pytest.fixture
def written(tiny: dict[str, Any], tmp_path: Path) -> Write:
    """`written(name, changes)` writes the configuration, with changes, to a file."""

    def write(name: str = "tiny.yaml", changes: Mapping[str, Any] | None = None) -> Path:
        path = tmp_path / name
        path.write_text(yaml.safe_dump(merge(tiny, changes or {})))
        return path

    return write
