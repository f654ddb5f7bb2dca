"""vLLM's errors become the port's, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hexpo.domain.errors import EngineFailed, HexpoError, WrongValue

REFUSALS = frozenset(
    {
        "VLLMClientError",
        "VLLMValidationError",
        "VLLMNotFoundError",
        "LoRAAdapterNotFoundError",
        "VLLMUnprocessableEntityError",
    }
)
"""Of one request: its caller's fault."""
FAILURES = frozenset(
    {
        "VLLMError",
        "VLLMServerError",
        "GenerationError",
        "RetryableRequestError",
        "GracefulHTTPError",
        "QueueOverflowError",
        "MaxQueuedTokensError",
        "ProfilerAlreadyActiveError",
        "EngineGenerateError",
        "EngineDeadError",
    }
)
"""Of the engine."""

_LOGGED = re.compile(r"ERROR .*\] ((?:\w+\.)*\w*(?:Error|Exception|Interrupt): .*)")
"""A line of vLLM's log with the error that a traceback ends with."""
_NEAR_THE_END = 1 << 18


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise the port's error for vLLM's; `doing` says what was tried."""
    try:
        yield
    except HexpoError:
        raise
    except Exception as error:
        names = {kind.__name__ for kind in type(error).__mro__}
        words = f"vllm: {doing}: {_words(error)}"
        if names & REFUSALS:
            raise WrongValue(words) from error
        raise EngineFailed(words) from error


def _words(error: BaseException) -> str:
    """An error and what caused it; where vLLM's own processes logged that, what they logged."""
    chain, text = [error], []
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        text.append(f"{type(one).__name__}: {one}".removesuffix(": "))
    if "root cause above" in text[-1] and (logged := last_error()):
        text.append(logged)
    return " <- ".join(text)


def last_error(log: Path = Path("/proc/self/fd/2")) -> str:
    """The last error that a log tells of; by default this process's own, where it is a file."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _NEAR_THE_END))
        lines = file.read().decode(errors="replace").splitlines()
    found = [match[1] for line in lines if (match := _LOGGED.search(line))]
    return found[-1].strip() if found else ""
