"""How a promise that was not kept is told."""

from __future__ import annotations


class Broken(AssertionError):
    """A promise that a run did not keep."""


def require(condition: bool, promise: str) -> None:  # noqa: FBT001  reads as a sentence
    """Raises Broken with the promise unless it is kept."""
    if not condition:
        raise Broken(promise)
