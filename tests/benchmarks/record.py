"""What a measured training run leaves behind, whichever library ran it, and how one is started.

A run is a child process that writes its record as JSON: it has an environment and a peak of memory
of its own. Only the standard library is needed to import this, so peers use it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measure import HERE, ROOT, Spent, peak_bytes

OUT = "BENCHMARK_RECORD"
"""Names the variable with the file that a child writes its record to."""


class Step(NamedTuple):
    """One optimizer step with all that led to it; evaluations are not in it."""

    spent: Spent
    reward: float
    """Mean over the step's answers."""
    tokens: int = 0
    """Generated tokens."""
    parts: Mapping[str, Spent] = {}
    """Shares of it, by name."""


class Evaluation(NamedTuple):
    """Held-out accuracy at a step."""

    step: int
    accuracy: float
    spent: Spent


class Record(NamedTuple):
    """One run."""

    steps: Sequence[Step]
    peak: int
    """Bytes of the process that trains."""
    total: Spent
    """From the start of the process to the end of the run."""
    evaluations: Sequence[Evaluation] = ()

    def write(self) -> None:
        """Leave it where the parent process looks for it."""
        Path(os.environ[OUT]).write_text(json.dumps(self))

    def reached(self, reward: float, *, over: int = 3) -> tuple[int, Spent] | None:
        """The first step at which the mean reward of the last `over` steps is at least `reward`,
        and the time of all steps up to it."""
        for last in range(over, len(self.steps) + 1):
            if sum(step.reward for step in self.steps[last - over : last]) / over >= reward:
                return last, sum((step.spent for step in self.steps[:last]), Spent(0.0, 0.0))
        return None


def _read(text: str) -> Record:
    steps, peak, total, evaluations = json.loads(text)
    return Record(
        [
            Step(Spent(*spent), reward, tokens, {key: Spent(*part) for key, part in parts.items()})
            for spent, reward, tokens, parts in steps
        ],
        peak,
        Spent(*total),
        [Evaluation(step, accuracy, Spent(*spent)) for step, accuracy, spent in evaluations],
    )


def child(python: Path | str, script: str, *arguments: str, **variables: str) -> Record:
    """Run a script of this folder to its end and read its record.

    Args: variables: of its environment; an empty one is taken out.
    Raises: RuntimeError: it failed; its last lines are in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        path = f"{HERE}{os.pathsep}{ROOT / '.src'}"
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path} | variables
        environment = {key: value for key, value in environment.items() if value}
        done = subprocess.run(
            [str(python), str(HERE / script), *arguments],
            cwd=ROOT,
            env=environment | {OUT: str(out)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode or not out.is_file():
            raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return _read(out.read_text())


def of(
    steps: Sequence[Step], evaluations: Sequence[Evaluation], began: Spent, now: Spent
) -> Record:
    """The record of this process's run."""
    return Record(steps, peak_bytes(), now - began, evaluations)


def job_of(argument: str) -> dict[str, Any]:
    """A child's settings, from its one argument."""
    settings: dict[str, Any] = json.loads(argument)
    return settings
