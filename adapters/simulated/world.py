"""The small ports, scripted: prompts, rewards, tokenizer, tracker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hexpo.application.ports.prompts import Position
from hexpo.application.ports.tracker import Sample
from hexpo.domain.metrics import Metrics, values
from hexpo.domain.trajectory import Message, Outcome, Prompt, Scored, Trajectory


class SimulatedPrompts:
    """Rows `0` .. `count - 1`, drawn in order, again and again."""

    def __init__(self, count: int) -> None:
        self._count, self._position = count, Position()
        self.identity = f"simulated/{count}"

    @property
    def position(self) -> Position:
        return self._position

    def draw(self) -> Prompt:
        """The next row."""
        here = self._position
        ends = here.index + 1 == self._count
        self._position = (
            Position(here.epoch + 1, 0) if ends else Position(here.epoch, here.index + 1)
        )
        return self._row(here.index)

    def seek(self, position: Position) -> None:
        """Go to a position."""
        self._position = position

    def rows(self) -> Iterator[Prompt]:
        """All rows."""
        return (self._row(index) for index in range(self._count))

    def __len__(self) -> int:
        return self._count

    @staticmethod
    def _row(index: int) -> Prompt:
        return Prompt(id=str(index), messages=(Message("user", f"question {index}"),), truth=index)


class SimulatedReward:
    """Scores each row by a function, after some virtual time."""

    def __init__(
        self, outcome: Callable[[Trajectory], Outcome] | None = None, *, seconds: float = 0.0
    ) -> None:
        self._outcome = outcome or (lambda row: Scored(value=float(row.id % 2)))
        self._seconds = seconds

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        """One outcome a row."""
        await asyncio.sleep(self._seconds)
        return [self._outcome(row) for row in rows]

    async def close(self) -> None:
        """Holds nothing."""


class SimulatedTokenizer:
    """A character is an id: its code point, cut to the vocabulary."""

    def __init__(self, vocabulary: int = 32) -> None:
        self.vocabulary, self.identity = vocabulary, f"simulated/{vocabulary}"
        self.stop_ids: tuple[int, ...] = (0,)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Contents one after the other."""
        return tuple(ord(c) % self.vocabulary for message in messages for c in message.content)

    def decode(self, ids: Sequence[int]) -> str:
        """Letters."""
        return "".join(chr(97 + index % 26) for index in ids)

    def save(self, folder: Path) -> None:
        """Nothing to save."""


class SimulatedTracker:
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.records: list[Sample] = []
        self.begun: list[int] = []
        self.closed = False

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        """Remembers where the run began."""
        self.begun.append(first_step)

    def report(self, step: int, metrics: Metrics) -> None:
        """Keeps the reduced numbers."""
        self.reports.append((step, values(metrics)))

    def samples(self, samples: Sequence[Sample]) -> None:
        """Keeps the records."""
        self.records += samples

    def progress(self, done: int, wanted: int, what: str) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Nothing to flush."""
        self.closed = True
