"""How a check of a contract speaks: what was promised, and what was found instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import attrs


@attrs.define
class Caught:
    """The error that a block raised; there once the block has ended."""

    error: BaseException = attrs.field(factory=BaseException)


def expect(condition: object, message: str) -> None:
    """Raises: AssertionError: the promise in `message` does not hold."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def refusal(kind: type[BaseException], pattern: str = "") -> Iterator[Caught]:
    """The block must raise `kind`, with a message in which `pattern` is found.

    Raises: AssertionError: it raised nothing, or its message says something else; another error
        passes through as it is.
    """
    caught = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
        expect(re.search(pattern, str(error)), f"the message {error!s} lacks {pattern!r}")
    else:
        raise AssertionError(f"{kind.__name__} was expected")
