"""Exceptions that travel: with their type where it can be made again, and their traceback."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from hexpo.domain.errors import EngineFailed

Failure = tuple[bytes, str, str]
"""The pickled exception or nothing, what it is in one line, and its traceback."""


def failure(error: BaseException) -> Failure:
    """An exception as plain values."""
    told = "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001  whatever its own pickling does: the text stands for it
        pickled = b""
    return pickled, told, trace


def revived(told: Failure, *, name: str) -> Exception:
    """The exception, with the traceback it had in process `name` as a note.

    One that cannot be made here, or that would end this process, becomes EngineFailed.
    """
    pickled, line, trace = told
    error: Any = None
    if pickled:
        try:
            error = pickle.loads(pickled)
        except Exception:  # noqa: BLE001  its class is not here: the text stands for it
            error = None
    is_harmless = not isinstance(error, StopIteration | StopAsyncIteration)
    told_as: Exception = EngineFailed(f"process {name!r} raised {line}")
    if isinstance(error, Exception) and is_harmless:
        told_as = error
    told_as.add_note(f"in process {name!r}:\n{trace.rstrip()}")
    return told_as
