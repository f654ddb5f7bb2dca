"""Where the time of a step goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hexpo.domain.metrics import Measure, total


class Stopwatch:
    """Adds up the seconds of named parts of one step, by the event loop's clock, so that virtual
    time measures itself too."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._parts: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Measure the block as `time/<part>`."""
        began = self._clock()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + self._clock() - began

    def metrics(self) -> dict[str, Measure]:
        """`time/<part>` of every part and `time/step`, in seconds."""
        parts = {f"time/{name}": total(seconds) for name, seconds in self._parts.items()}
        return {**parts, "time/step": total(self._clock() - self._began)}
