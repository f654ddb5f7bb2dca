"""What is known of one replica among several: its standing, its requests, its use of time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from enum import Enum

import attrs

from hexpo.application.ports.rollout import RolloutEngine
from hexpo.domain.metrics import Measure, largest, latest, mean_of, smallest


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
        self.nonsense = 0
        """Its last answers, in a row, that can be none."""
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
            self._looked = self._changed if self._looked is None else self._looked
            self.idle.clear()
        self.running[running] = None

    def end(self, running: Running) -> None:
        """A request leaves."""
        del self.running[running]
        if not self.running:
            self._busy += _now() - self._changed
            self.idle.set()

    def release(self) -> None:
        """Whoever waits for its answers waits no longer."""
        now = _now()
        for running in self.running:
            running.bound.reschedule(now)

    def usage(self) -> Usage:
        """Since the last call; the first one, since its first request."""
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


def shares(each: Sequence[Usage]) -> dict[str, Measure]:
    """Busy shares, requests and standings of all replicas (R3)."""
    busy = sum(one.busy_seconds for one in each)
    wall = busy + sum(one.waiting_seconds for one in each)
    counted = Counter(one.standing for one in each)
    return {
        "replicas/busy": mean_of(busy, wall) if wall > 0 else mean_of(0.0, 1.0),
        "replicas/busy_least": smallest(min(one.busy_share for one in each)),
        "replicas/busy_most": largest(max(one.busy_share for one in each)),
        "replicas/requests": mean_of(float(sum(one.requests for one in each)), len(each)),
        "replicas/fenced": latest(float(counted[Standing.FENCED])),
        "replicas/leased": latest(float(counted[Standing.LEASED])),
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
