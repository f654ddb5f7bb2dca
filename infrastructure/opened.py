"""What a container opened, so that it can be closed: whoever opens a part closes it."""

from __future__ import annotations

import logging
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)


class Closable(Protocol):
    """A part that holds processes, threads or memory."""

    async def close(self) -> None: ...


P = TypeVar("P", bound=Closable)


class Opened:
    """The parts that a container made and must close. A part that an application put in place of
    one is not among them: it belongs to the application."""

    def __init__(self) -> None:
        self._parts: list[Closable] = []

    def keep(self, part: P) -> P:
        """Remember a part; returns it."""
        self._parts.append(part)
        return part

    async def close(self) -> None:
        """Close all parts, the last one first. One that fails is logged and keeps no other open.
        Safe to call twice."""
        failures: list[tuple[Closable, Exception]] = []
        while self._parts:
            part = self._parts.pop()
            try:
                await part.close()
            except Exception as error:  # noqa: BLE001  else it keeps the others open
                failures.append((part, error))
        for part, failure in failures:
            log.warning("%s did not close cleanly", type(part).__name__, exc_info=failure)
