"""An endless reading of rows in memory, each epoch in a seeded order of its own."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hexpo.application.ports.prompts import Position
from hexpo.domain.errors import DataError
from hexpo.domain.seeds import seed_for
from hexpo.domain.trajectory import Prompt


class OrderedRows:
    """A `PromptSource` over rows that fit in memory.

    An epoch's order is a function of (seed, epoch) alone: no state but the position is needed to
    go on, and no earlier draw changes a later one.
    """

    def __init__(self, rows: Sequence[Prompt], *, seed: int, shuffle: bool, what: str) -> None:
        """Take the rows of `what` (named in errors).

        Raises: DataError: there is no row, or two rows have the same id.
        """
        if not rows:
            raise DataError(f"{what}: there is no row; check the paths and the selection")
        _refuse_twins(rows, what)
        self._rows = tuple(rows)
        self._seed = seed
        self._shuffle = shuffle
        self._what = what
        self._position = Position()
        self._order: tuple[int, Sequence[int]] | None = None
        settings = (seed, shuffle)
        self._identity = digest([settings, *map(_content, self._rows)])

    @property
    def identity(self) -> str:
        """Digest of every row, the seed and whether they are shuffled."""
        return self._identity

    @property
    def position(self) -> Position:
        """Where the next row is drawn."""
        return self._position

    def draw(self) -> Prompt:
        """The next row, for ever."""
        epoch, index = self._position.epoch, self._position.index
        row = self._rows[self._order_of(epoch)[index]]
        done = index + 1 == len(self._rows)
        self._position = Position(epoch + 1, 0) if done else Position(epoch, index + 1)
        return row

    def seek(self, position: Position) -> None:
        """Go to a position. Raises: DataError: it lies outside this source's rows."""
        if position.epoch < 0 or not 0 <= position.index <= len(self._rows):
            raise DataError(
                f"{self._what}: {position} lies outside its {len(self._rows)} rows; the position "
                "is from another source, start from Position() instead"
            )
        at_end = position.index == len(self._rows)
        self._position = Position(position.epoch + 1, 0) if at_end else position

    def rows(self) -> Iterator[Prompt]:
        """Every row exactly once, in file order."""
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _order_of(self, epoch: int) -> Sequence[int]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self._permutation(epoch))
        return self._order[1]

    def _permutation(self, epoch: int) -> Sequence[int]:
        places = range(len(self._rows))
        if not self._shuffle:
            return places
        # `random()` of an int seed is the part of `random` that is equal in every Python version.
        draw = random.Random(seed_for(self._seed, "epoch", epoch)).random
        keys = [draw() for _ in places]
        return sorted(places, key=keys.__getitem__)


def digest(value: Any) -> str:
    """A short digest of plain values, equal in every process and for every order of keys."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def _content(row: Prompt) -> tuple[Any, ...]:
    messages = [(message.role, message.content) for message in row.messages]
    return (row.id, messages, row.truth, row.source, row.extra)


def _canonical(value: Any) -> str:
    if isinstance(value, Mapping):
        items = sorted((_canonical(key), _canonical(item)) for key, item in value.items())
        return "{" + ",".join(f"{key}:{item}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, set | frozenset):
        return "(" + ",".join(sorted(map(_canonical, value))) + ")"
    # The plain repr of an object holds an address, which no other process shares.
    plain = f"<{type(value).__module__}.{type(value).__qualname__} object at"
    text = repr(value)
    return plain if text.startswith(plain) else text


def _refuse_twins(rows: Sequence[Prompt], what: str) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise DataError(
                f"{what}: two rows have the id {row.id!r}; groups go by id: name a field with "
                "distinct ids by `id`, or rename one of two files of the same name"
            )
        seen.add(row.id)
