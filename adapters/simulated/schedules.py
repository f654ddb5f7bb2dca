"""Virtual time in which a seed draws what happens first, as far as anything may differ."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from hexpo.adapters.simulated.clock import VirtualLoop

T = TypeVar("T")


class ExploringLoop(VirtualLoop):
    """Callbacks that are ready in the same instant run in an order that a seed draws, and timers
    fire a little late. The same seed gives the same run.

    asyncio promises an order, other loops and real machines do not: what is right only in
    asyncio's order is right by chance (trio draws the order for the same reason).
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, seed: int, *, jitter: float = 0.0) -> None:
        """Args: jitter: seconds by which a timer is late at most."""
        self._random, self._jitter = Random(seed), jitter
        super().__init__()

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's, a little later."""
        late = self._random.random() * self._jitter
        return super().call_at(when + late, callback, *args, context=context)

    def _run_once(self) -> None:
        # asyncio has no public place for it: what is in the queue now is what this pass runs
        if len(self._ready) > 1:
            drawn = list(self._ready)
            self._random.shuffle(drawn)
            self._ready.clear()
            self._ready.extend(drawn)
        super()._run_once()  # type: ignore[misc]


def run_seeded(main: Coroutine[Any, Any, T], seed: int, *, jitter: float = 0.0) -> T:
    """Run a coroutine in virtual time, in the order that the seed draws. Raises Stuck."""
    with asyncio.Runner(loop_factory=lambda: ExploringLoop(seed, jitter=jitter)) as runner:
        return runner.run(main)
