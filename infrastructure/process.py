"""The process that a command runs in: its environment, set before anything reads it.

Thread runtimes and allocators read their variables once, when a process starts. So a command that
computes asks its platform what must be set and, if something is missing, replaces itself by the
same command with it. Called by the command line's `main`, never on import.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from hexpo.application.ports.platform import Platform

_log = logging.getLogger(__name__)

RESTARTED = "HEXPO_RESTARTED"
"""Set in the new process, so that a command restarts once at most."""

QUIET = (("HF_HUB_DISABLE_PROGRESS_BARS", "1"), ("TRANSFORMERS_VERBOSITY", "error"))
"""Else transformers draws a bar and repeats in its own words what hexpo reports."""

Replace = Callable[[str, Sequence[str], Mapping[str, str]], object]
"""Replaces the process: a program, its arguments (its name first) and its environment."""


def quieten() -> None:
    """Keep transformers from drawing over hexpo's own output; what the user has set stays."""
    for name, value in QUIET:
        os.environ.setdefault(name, value)


def collect_rarely() -> None:
    """Look for unreachable objects less often: with 100,000 answers in flight every look walks
    them all, and the loop's cost an event fell from 77 to 47 microseconds."""
    gc.set_threshold(200_000, 50, 100)


def missing(wanted: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Variables to add. One that the user has set stays as it is, whatever the platform wants."""
    return {name: value for name, value in wanted.items() if name not in present}


def with_environment(
    platform: Platform,
    argv: Sequence[str] | None = None,
    *,
    present: Mapping[str, str] | None = None,
    replace: Replace | None = None,
) -> None:
    """Go on in a process that has the platform's variables.

    Returns at once if none is missing; else the process is replaced, and this call does not
    return. The process keeps its id, terminal and open files.

    Args:
        platform: says which variables must be set.
        argv: this process's own command line, interpreter first; None: what Python was started
            with.
        present: the environment; None: that of the process.
        replace: what replaces the process; None: the system's exec.
    """
    environment = dict(os.environ if present is None else present)
    added = missing(platform.environment(), environment)
    if not added:
        return
    if RESTARTED in environment:
        _log.warning("the restart lost %s: going on without", ", ".join(sorted(added)))
        return
    command = list(sys.orig_argv if argv is None else argv)
    _log.debug("restarting with %s", added)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    environment |= added | {RESTARTED: "1"}
    (replace or os.execve)(sys.executable, [sys.executable, *command[1:]], environment)
