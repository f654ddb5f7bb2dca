"""One replica among several: what it does, what it holds, and where its time goes."""

from __future__ import annotations

import asyncio
from enum import Enum

import attrs

from hexpo.application.ports.rollout import RolloutEngine


class Standing(Enum):
    """What a replica is to the others."""

    SERVING = "serving"
    """Answers, and takes part in weight updates."""
    LEASED = "leased"
    """Answers to its lease alone, under the version that it had."""
    RETURNING = "returning"
    """Takes part in the next weight update, and answers only after it."""
    FENCED = "fenced"
    """Failed, was late, or reported something else than the others: it is left alone."""


@attrs.frozen(kw_only=True)
class Usage:
    """Where one replica's time went since the last look; busy and waiting are the wall time."""

    name: str
    standing: Standing
    busy_seconds: float
    """With at least one request."""
    waiting_seconds: float
    """Without one."""
    requests: int
    """In it now."""

    @property
    def busy_share(self) -> float:
        """In [0, 1]; 0 where no time has passed."""
        wall = self.busy_seconds + self.waiting_seconds
        return self.busy_seconds / wall if wall > 0 else 0.0


@attrs.define(eq=False)
class Running:
    """A request inside a replica."""

    bound: asyncio.Timeout
    """Moved to now, it frees whoever waits for the replica's answer."""


class Member:
    """A replica, by name."""

    def __init__(self, name: str, engine: RolloutEngine) -> None:
        self.name, self.engine = name, engine
        self.standing = Standing.SERVING
        self.running: dict[Running, None] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self._looked: float | None = None
        self._changed = self._busy = 0.0

    @property
    def is_fenced(self) -> bool:
        return self.standing is Standing.FENCED

    def begin(self, running: Running) -> None:
        """A request enters."""
        if not self.running:
            self._changed = _now()
            self.idle.clear()
        self.running[running] = None

    def end(self, running: Running) -> None:
        """A request leaves."""
        del self.running[running]
        if not self.running:
            self._busy += _now() - self._changed
            self.idle.set()

    def watch(self) -> None:
        """Its time counts from here, if it does not yet."""
        if self._looked is None:
            self._looked = _now()

    def usage(self) -> Usage:
        """Since the last call, or since `watch`."""
        now = _now()
        wall = now - (now if self._looked is None else self._looked)
        self._looked = now
        if self.running:
            self._busy += now - self._changed
            self._changed = now
        busy, self._busy = min(self._busy, wall), 0.0
        return Usage(
            name=self.name,
            standing=self.standing,
            busy_seconds=busy,
            waiting_seconds=wall - busy,
            requests=len(self.running),
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
