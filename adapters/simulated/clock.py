"""An event loop whose time jumps to the next timer: hours of waiting pass in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hexpo.domain.errors import HexpoError

T = TypeVar("T")


class Stuck(HexpoError):
    """Every task waits for something that nobody will ever do."""


class _JumpingSelector(selectors.SelectSelector):
    """Never sleeps: what would be waited for is added to the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stuck(
                "no task is ready and no timer is set: every task waits for another one."
                " Virtual time does not mix with sockets or threads of one's own"
            )
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio with virtual time: `loop.time()`, `sleep` and timeouts all follow it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: object, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        """Call it here and now: what a thread would do takes no virtual time."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001  handed to whoever awaits, as a thread's would be
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time to its end. Raises Stuck on a deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
