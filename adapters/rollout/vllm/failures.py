"""vLLM's errors become the port's, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    """An error and what caused it; a dead engine's own words stand in its process's log."""
    chain, text = [error], []
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    for one in chain:
        text.append(f"{type(one).__name__}: {one}".removesuffix(": "))
    return " <- ".join(text)
