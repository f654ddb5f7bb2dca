"""A grader process: loads one grader, then answers one sample at a time.

It runs as a script, by its path, and imports nothing of hexpo: so it starts in milliseconds and
never loads torch. A grader is a file with `make(**options)`, which returns a function of one
sample (a dict). That function returns a number, or a dict with `score`; it raises
NotImplementedError for a kind of sample that it does not know.

Messages are pickled tuples of plain values: first a job comes in, `ready` or `broken` goes out,
then samples come in and `scored` or `failed` goes out for each.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import math
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

PARENT_CHECK_SECONDS = 0.5
HANG_GRACE_SECONDS = 5.0
"""A live parent kills a hanging process at the bound; this long after it, it ends by itself."""
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Where code is that no user would look for an error in."""

Grade = Callable[[Mapping[str, Any]], Any]
Reply = tuple[Any, ...]


def main() -> None:
    """Serve until the parent closes its end or dies."""
    connection = Connection(int(sys.argv[1]))
    parent = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C, and closes its workers
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        job = pickle.loads(connection.recv_bytes())
        grade = _load_or_none(job, connection)
        if grade is not None:
            _serve(connection, grade, job["bound_seconds"])
    except (EOFError, OSError):
        pass  # the parent closed its end
    _end_group()


def _load_or_none(job: Mapping[str, Any], connection: Connection) -> Grade | None:
    sys.path[:] = job["sys_path"]
    try:
        grade = load(job["file"], job["options"])
    except BaseException as error:  # noqa: BLE001 - whatever stops the grader's code is its error
        _send(connection, ("broken", _describe(error)))
        return None
    _send(connection, ("ready", tuple(getattr(grade, "wants", ()))))
    return grade


def load(file: str, options: Mapping[str, Any]) -> Grade:
    """The grader that a file's `make` gives."""
    spec = importlib.util.spec_from_file_location("hexpo_grader", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    grade: Grade = module.make(**options)
    return grade


def _serve(connection: Connection, grade: Grade, bound_seconds: float) -> None:
    with open(os.devnull, "w") as nowhere:
        while True:
            payload = connection.recv_bytes()
            # Its watchdog needs no GIL: it ends even a hang in C whose parent was killed.
            limit = bound_seconds + HANG_GRACE_SECONDS
            faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
            reply = answer(grade, payload)
            faulthandler.cancel_dump_traceback_later()
            _send(connection, reply)


def answer(grade: Grade, payload: bytes) -> Reply:
    """The reply for one sample: whatever the grader does, one comes out."""
    try:
        return read(grade(pickle.loads(payload)))
    except NotImplementedError as error:
        return ("failed", "UNSUPPORTED", str(error) or "the grader does not know this sample")
    except BaseException as error:  # noqa: BLE001 - a failing sample is a value, counted by the run
        return ("failed", "RAISED", _describe(error))


def read(result: Any) -> Reply:
    """A grader's result as a reply: the score, its numeric parts, the rest."""
    parts: Mapping[Any, Any] = {}
    score = result
    if isinstance(result, Mapping):
        if "score" not in result:
            names = ", ".join(map(str, result)) or "nothing"
            return ("failed", "BAD_RESULT", f"the returned dict lacks 'score', it has {names}")
        parts = {str(key): value for key, value in result.items() if key != "score"}
        score = result["score"]
    value = _number(score)
    if value is None:
        return ("failed", "BAD_RESULT", f"the score is no finite number: {score!r:.200}")
    numbers = {key: _number(part) for key, part in parts.items()}
    components = {key: number for key, number in numbers.items() if number is not None}
    extra = {key: _plain(part) for key, part in parts.items() if numbers[key] is None}
    return ("scored", value, components, extra)


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _plain(value: Any) -> Any:
    """What the parent can read without the grader's own types."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)


def _describe(error: BaseException) -> str:
    """The error, and where the grader's own code or a library raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<"))
    ]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _send(connection: Connection, reply: Reply) -> None:
    connection.send_bytes(pickle.dumps(reply))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    _end_group()


def _end_group() -> None:
    """End this process and whatever the grader started: they share a process group."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
