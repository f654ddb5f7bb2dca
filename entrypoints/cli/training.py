"""`hexpo train`, `hexpo fit` and `hexpo evaluate`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console

from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.cli import process
from hexpo.entrypoints.cli.main import INTERRUPTED
from hexpo.infrastructure import runs

if TYPE_CHECKING:  # they import torch, which must not happen before the process is prepared
    from hexpo.entrypoints.library import Run

T = TypeVar("T")


def train(config: str | None, overrides: Sequence[str], *, resume: str | None, parent: str) -> int:
    """Train a new run, or go on with one."""
    run, console = _open(config, overrides, resume=resume, parent=parent, fits=False)

    from hexpo.entrypoints.cli import answers

    report = asyncio.run(_interruptible(run, console, run.train_async))
    answers.show(console, report)
    return _said(console, run, "train", step=report.step, finished=report.finished)


def fit(config: str | None, overrides: Sequence[str], *, resume: str | None, parent: str) -> int:
    """Learn from given answers in a new run, or go on with one."""
    run, console = _open(config, overrides, resume=resume, parent=parent, fits=True)

    from hexpo.entrypoints.cli import answers

    report = asyncio.run(_interruptible(run, console, run.fit_async))
    answers.show_numbers(console, report.first_evaluation, report.last_evaluation)
    return _said(console, run, "fit", step=report.step, finished=report.finished)


def _open(
    config: str | None, overrides: Sequence[str], *, resume: str | None, parent: str, fits: bool
) -> tuple[Run, Console]:
    """A run in its folder: a new one, or the one to go on with."""
    if resume is not None and config is not None and "=" in config:
        overrides, config = (config, *overrides), None
    if config is None and resume is None:
        raise ConfigurationError("give a configuration file, or --resume RUN")
    folder = runs.find(resume, parent=Path(parent)) if resume is not None else None
    file = Path(config) if config is not None else Path(str(folder)) / runs.CONFIG
    process.prepare(file, overrides)

    from hexpo.entrypoints import library

    console = Console()
    run = library.build(file, *overrides, folder=folder, console=console, fits=fits)
    run.folder.mkdir(parents=True, exist_ok=True)
    process.log_to(run.folder)
    console.print(f"run folder: {run.folder}")
    return run, console


def _said(console: Console, run: Run, command: str, *, step: int, finished: bool) -> int:
    """How it ended, and the exit code."""
    if not finished:
        console.print(
            f"stopped after step {step}; go on with: hexpo {command} --resume {run.folder}"
        )
        return INTERRUPTED
    console.print(f"finished step {step}; metrics, samples and checkpoints: {run.folder}")
    return 0


def evaluate(target: str, overrides: Sequence[str], *, parent: str) -> int:
    """Measure a run's checkpoint, or a configuration's model."""
    is_file = Path(target).is_file()
    folder = None if is_file else runs.find(target, parent=Path(parent))
    file = Path(target) if folder is None else folder / runs.CONFIG
    # Numbers of this command are shown; the run's own record is left as it was.
    quiet = (*overrides, "trackers=[{kind: console}]")
    process.prepare(file, quiet)

    from hexpo.entrypoints import library
    from hexpo.entrypoints.cli import answers

    console = Console()
    run = library.build(file, *quiet, folder=folder or Path(), console=console)
    report = run.evaluate()
    answers.show_evaluation(console, report)
    return 0


async def _interruptible(run: Run, console: Console, work: Callable[[], Awaitable[T]]) -> T:
    """Work under Ctrl-C: the first one ends after the present step, the second one at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    pressed = 0

    def on_interrupt() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            console.print("stopping after this step; press Ctrl-C again to end at once")
            run.stop()
        elif task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGTERM, on_interrupt)
    try:
        return await work()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
