"""Bounded waiting for another process, in a thread that may block."""

from __future__ import annotations

import time
from collections.abc import Callable

from hexpo.domain.errors import EngineFailed

_SHORTEST, _LONGEST = 2e-5, 2e-3


def wait_until(done: Callable[[], bool], *, bound_seconds: float, awaited: str) -> None:
    """Return as soon as `done`. Raises EngineFailed: it is not within the bound; says for what."""
    end, pause = time.monotonic() + bound_seconds, _SHORTEST
    while not done():
        if time.monotonic() > end:
            raise EngineFailed(f"waited {bound_seconds:g} s in vain for {awaited}")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)
