"""When devices that generate and train in turns stop generating."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hexpo.domain.schedule.switching import Cycle, should_train

Rule = Callable[[Cycle], bool]
"""Whether to stop generating now."""


class Meter:
    """How many answers are being played, and how long all of them took together.

    An answer of a batch gets tokens about as fast as any other, so seconds of answers stand for
    tokens: `switching` compares one with another, and the speed of an answer cancels out.
    """

    def __init__(self) -> None:
        self.running = 0
        """Answers that are being played."""
        self.changed = asyncio.Event()
        """Set when an answer or a group has ended."""
        self._spent = self._last = 0.0  # nothing runs before the first look at the clock

    @property
    def spent(self) -> float:
        """Answer-seconds since the beginning."""
        self._advance()
        return self._spent

    def begin(self) -> None:
        """An answer begins."""
        self._advance()
        self.running += 1

    def end(self) -> None:
        """It has ended."""
        self._advance()
        self.running -= 1
        self.changed.set()

    def _advance(self) -> None:
        present = now()
        self._spent += self.running * (present - self._last)
        self._last = present


class Turns:
    """Ends the generating half of a cycle by a rule, and measures what a switch costs."""

    def __init__(self, meter: Meter, rule: Rule = should_train) -> None:
        self._meter, self._rule = meter, rule
        self._began = self._spent = self._switch = 0.0

    @contextmanager
    def away(self, busy: Callable[[], float]) -> Iterator[None]:
        """The other half: from the pause to the resumption. What of it was not the trainer's own
        work is the cost of a switch. Args: busy: the trainer's seconds so far."""
        began, worked = now(), busy()
        yield
        self._began, self._spent = now(), self._meter.spent
        self._switch = max(0.0, self._began - began - (busy() - worked))

    async def over(self, finished: Callable[[], tuple[int, int]], stop: asyncio.Event) -> None:
        """Wait until the rule says so, or `stop` is set.

        Args: finished: groups that could be trained now, and how many a batch needs.
        """
        while not stop.is_set():
            self._meter.changed.clear()
            if self._rule(self._cycle(*finished())):
                return
            waits = [asyncio.ensure_future(event.wait()) for event in (self._meter.changed, stop)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _cycle(self, finished: int, wanted: int) -> Cycle:
        meter = self._meter
        return Cycle(
            finished=finished,
            wanted=wanted,
            running=meter.running,
            tokens=meter.spent - self._spent,
            seconds=now() - self._began,
            tokens_per_second=float(meter.running),
            switch_seconds=self._switch,
        )


def now() -> float:
    """The event loop's clock."""
    return asyncio.get_running_loop().time()
