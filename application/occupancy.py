"""How much of the time something was going on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hexpo.domain.metrics import Measure, mean_of


class Occupancy:
    """The share of the event loop's time in which at least one piece of work was under way."""

    def __init__(self) -> None:
        self._count = 0
        self._busy = self._changed = 0.0
        self._looked: float | None = None

    @contextmanager
    def work(self) -> Iterator[None]:
        """One piece, from here to the end of the block."""
        clock = asyncio.get_running_loop().time
        self._account(clock())
        self._count += 1
        try:
            yield
        finally:
            self._account(clock())
            self._count -= 1

    def share(self) -> Measure:
        """In [0, 1], since the last call; the first one, since the first piece (R3)."""
        now = asyncio.get_running_loop().time()
        self._account(now)
        wall = 0.0 if self._looked is None else now - self._looked
        busy, self._busy, self._looked = self._busy, 0.0, now
        return mean_of(min(busy, wall), wall) if wall > 0 else mean_of(0.0, 1.0)

    def _account(self, now: float) -> None:
        if self._looked is None:
            self._looked = now
        if self._count:
            self._busy += now - self._changed
        self._changed = now
