"""Where the time of a step goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hexpo.domain.metrics import Measure, mean_of, total

BUSY = ("score", "train")
"""Parts in which the trainer's devices compute."""


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

    def busy(self) -> float:
        """Seconds in which the trainer's devices have computed."""
        return sum(self._parts.get(name, 0.0) for name in BUSY)

    def metrics(self) -> dict[str, Measure]:
        """`time/<part>` of every part and `time/step`, in seconds."""
        parts = {f"time/{name}": total(seconds) for name, seconds in self._parts.items()}
        whole = self._clock() - self._began
        # A step of no time was busy with nothing (R3).
        share = mean_of(self.busy(), whole) if whole > 0 else mean_of(0.0, 1.0)
        return {**parts, "time/step": total(whole), "busy/trainer": share}
