"""The parent's side of one grader process."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import attrs

from hexpo.domain.errors import RewardUnavailable
from hexpo.domain.trajectory import Cause, Failed, Outcome, Scored

WORKER = Path(__file__).with_name("worker.py")


@attrs.frozen(kw_only=True)
class GraderFile:
    """What a grader process loads."""

    name: str
    """For errors, such as `rewards/python (my.py:score)`."""
    file: Path
    """A file with `make(**options)`; imports no torch."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain values for `make`."""
    bound_seconds: float
    """How long one sample may take."""
    load_seconds: float = 120.0
    """How long loading may take."""


class GraderProcess:
    """One process with one grader. Not shared between threads, but `kill` may come from any."""

    def __init__(self, grader: GraderFile) -> None:
        """Start it; loading goes on while the caller does.

        Raises: RewardUnavailable: the system refuses another process.
        """
        self._grader = grader
        self._ending = threading.Lock()
        self._connection, theirs = Pipe()
        command = [sys.executable, "-P", str(WORKER), str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a grader prints goes to the errors, never into a pipe
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a group of its own, to be killed whole
            )
        except OSError as error:
            self._connection.close()
            raise RewardUnavailable(f"{grader.name}: no process for it: {error}") from error
        finally:
            theirs.close()
        self._ready: tuple[str, ...] | None = None
        job = {
            # A user's module may lie in the working folder, as it does for `python -m`.
            "sys_path": [*(path or os.getcwd() for path in sys.path), os.getcwd()],
            "file": str(grader.file),
            "options": dict(grader.options),
            "bound_seconds": grader.bound_seconds,
        }
        self._put(pickle.dumps(job))

    def wait_ready(self) -> tuple[str, ...]:
        """Wait until the grader is loaded; returns the names of what it wants in samples.

        Raises: RewardUnavailable: its code can't be loaded, or not in time; the process is gone.
        """
        if self._ready is not None:
            return self._ready
        reply = _take(self._connection, self._grader.load_seconds)
        if reply is not None and reply[0] == "ready":
            self._ready = tuple(reply[1])
            return self._ready
        if reply is None:
            problem = f"did not load in {self._grader.load_seconds:g} s"
        elif reply[0] == "broken":
            problem = f"can't be loaded: {reply[1]}"
        else:
            problem = "its process died while loading"
        self.kill()
        raise RewardUnavailable(f"{self._grader.name} {problem}")

    def ask(self, payload: bytes) -> Outcome | None:
        """The outcome of one sample; None if the process had died before it got the sample.

        After a timeout or a death in the middle the process is gone: start another.
        """
        if not self._put(payload):
            self.kill()
            return None
        reply = _take(self._connection, self._grader.bound_seconds)
        if reply is None:
            self.kill()
            message = f"did not end within {self._grader.bound_seconds:g} s and was stopped"
            return Failed(cause=Cause.TIMED_OUT, message=message)
        if reply[0] == "scored":
            return Scored(value=reply[1], components=reply[2], extra=reply[3])
        if reply[0] == "failed":
            return Failed(cause=Cause[reply[1]], message=reply[2])
        code = self.kill()
        message = f"the grader's process died on this sample (exit code {code})"
        return Failed(cause=Cause.RAISED, message=message)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return not self._connection.closed and self._process.returncode is None

    def interrupt(self) -> None:
        """Kill it from another thread: whoever waits for its answer sees it die."""
        with self._ending:
            self._signal()

    def kill(self) -> int:
        """End it and all that its grader started; returns its exit code."""
        with self._ending:
            self._signal()
            self._connection.close()
            return self._process.wait()

    def _signal(self) -> None:
        if self._process.returncode is None:  # not reaped yet: its number can't be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _put(self, payload: bytes) -> bool:
        try:
            self._connection.send_bytes(payload)
        except OSError:
            return False
        return True


def _take(connection: Connection, seconds: float) -> tuple[Any, ...] | None:
    """The next reply, None if there is none in time, `("died",)` if there will be none."""
    try:
        if not connection.poll(seconds):
            return None
        reply: tuple[Any, ...] = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError, pickle.UnpicklingError):
        return ("died",)
    return reply
