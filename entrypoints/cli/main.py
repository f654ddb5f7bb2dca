"""`hexpo`: commands, and how errors and Ctrl-C end them.

This module is read at each start, so it imports nothing that takes time: each command imports what
it needs when it runs.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from hexpo import __version__
from hexpo.domain.errors import ConfigurationError, EngineFailed, HexpoError, NonFinite
from hexpo.entrypoints.cli.asked import Asked

USER_ERROR, FAILURE, INTERRUPTED = 2, 1, 130
"""Exit codes: something to correct, something that broke, Ctrl-C."""

REFUSED = MappingProxyType(
    {
        errno.ENOSPC: "make room there; what was saved is whole: hexpo train --resume RUN",
        errno.EDQUOT: "your quota there is used up; what was saved is whole",
        errno.EROFS: "choose a folder that can be written (run.folder)",
        errno.EACCES: "choose a folder that you may write (run.folder)",
    }
)
"""What the system may refuse to do with files, and what to do then."""

app = App(
    name="hexpo",
    help="Post-training of language models: reinforcement learning and distillation.",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # else it exits by itself, without a word
)

Config = Annotated[str, Parameter(help="A YAML file.")]
Overrides = Annotated[str, Parameter(help="`section.key=value`, any number of them.")]
RunName = Annotated[str, Parameter(help="A run's folder, or its name below `--runs`.")]
RunsFolder = Annotated[str, Parameter(name="--runs", help="Folder of all runs.")]


@app.command
def train(
    config: Config | None = None,
    *overrides: Overrides,
    resume: Annotated[
        str | None, Parameter(help="Go on with this run, from its newest checkpoint.")
    ] = None,
    runs: RunsFolder = "runs",
) -> int:
    """Train a policy, and show answers before and after."""
    from hexpo.entrypoints.cli import training

    return training.train(config, overrides, resume=resume, parent=runs)


@app.command
def fit(
    config: Config | None = None,
    *overrides: Overrides,
    resume: Annotated[
        str | None, Parameter(help="Go on with this run, from its newest checkpoint.")
    ] = None,
    runs: RunsFolder = "runs",
) -> int:
    """Learn from given answers: demonstrations, pairs, judged answers, a reward model."""
    from hexpo.entrypoints.cli import training

    return training.fit(config, overrides, resume=resume, parent=runs)


@app.command
def evaluate(target: RunName, *overrides: Overrides, runs: RunsFolder = "runs") -> int:
    """Measure held-out prompts with a run's newest checkpoint, or with a configuration's model."""
    from hexpo.entrypoints.cli import training

    return training.evaluate(target, overrides, parent=runs)


@app.command
def chat(run: RunName, *overrides: Overrides, runs: RunsFolder = "runs") -> int:
    """Talk to a run's newest checkpoint."""
    from hexpo.entrypoints.cli import talking

    return talking.chat(run, overrides, parent=runs)


@app.command
def export(run: RunName, folder: str, /, *overrides: Overrides, runs: RunsFolder = "runs") -> int:
    """Write a run's newest checkpoint as a Hugging Face model folder."""
    from hexpo.entrypoints.cli import talking

    return talking.export(run, folder, overrides, parent=runs)


@app.command
def plan(config: Config, *overrides: Overrides) -> int:
    """Resolve and check a configuration, and show what it means in numbers. Loads no model."""
    from hexpo.entrypoints.cli import looking

    return looking.plan(config, overrides)


@app.command
def simulate(config: Config, *overrides: Overrides, asked: Asked) -> int:
    """Say how fast a configuration would train on so many devices, and draw it. Loads no model."""
    from hexpo.entrypoints.cli import simulating

    return simulating.simulate(config, overrides, asked)


@app.command
def doctor(
    *overrides: Overrides,
    preflight: Annotated[
        str | None, Parameter(help="A YAML file: place its processes and try them, shortly.")
    ] = None,
    bound: Annotated[float, Parameter(help="Longest time of each trial, in seconds.")] = 120.0,
) -> int:
    """Show what this machine and this installation can do, or try a configuration's processes."""
    if preflight is not None:
        from hexpo.entrypoints.cli import checking

        return checking.preflight(preflight, overrides, bound=bound)
    if overrides:
        raise ConfigurationError("overrides belong to a configuration: give --preflight FILE")
    from hexpo.entrypoints.cli import looking

    return looking.doctor()


@app.command(name="runs")
def list_runs(folder: Annotated[str, Parameter(help="Folder of all runs.")] = "runs") -> int:
    """List run folders, newest first."""
    from hexpo.entrypoints.cli import looking

    return looking.runs(folder)


@app.command
def algorithms(
    kind: Annotated[str | None, Parameter(help="One kind only, or one name.")] = None,
) -> int:
    """List estimators, losses and the rest: formula, options, source."""
    from hexpo.entrypoints.cli import looking

    return looking.algorithms(kind)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = run(given)
    except KeyboardInterrupt:
        code = _end_by_interrupt()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would only break into Python's own end
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command: its exit code, after one clear message if it failed."""
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    _log_to_stderr(logging.DEBUG if debug else logging.WARNING)
    if os.getcwd() not in sys.path:  # last: a user's functions are found, and hide nothing
        sys.path.append(os.getcwd())
    try:
        code = app(rest, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _say(str(error), USER_ERROR)
    except (EngineFailed, NonFinite) as error:
        _trace(error.__cause__ if not debug else error)
        return _say(str(error), FAILURE)
    except HexpoError as error:
        if debug:
            _trace(error)
        return _say(str(error), USER_ERROR)
    except OSError as error:
        advice = REFUSED.get(error.errno or 0)
        if advice is None:
            raise
        if debug:
            _trace(error)
        return _say(f"{error}; {advice}", FAILURE)
    return code if isinstance(code, int) else 0


def _end_by_interrupt() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one must not break into the message
    return _say("interrupted", INTERRUPTED)


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setLevel(level)  # of the handler: a run's folder keeps more than the screen shows
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def _say(message: str, code: int) -> int:
    from rich.console import Console

    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"[bold red]error:[/] {_plain(message)}" if code != INTERRUPTED else message
    )
    return code


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _trace(error: BaseException | None) -> None:
    """The traceback of a failure: that of the engine itself, not of who noticed it."""
    import traceback

    if error is not None:
        sys.stderr.write("".join(traceback.format_exception(error)))
