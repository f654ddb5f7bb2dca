"""Port: where prompts come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import attrs

from hexpo.domain.trajectory import Prompt


@attrs.frozen
class Position:
    """A place in an endless, shuffled reading of the rows."""

    epoch: int = 0
    index: int = 0
    """How many rows of the epoch were drawn."""


class PromptSource(Protocol):
    """Rows of a data set, known by id.

    Promises: the same seed draws the same order, each epoch in an order of its own; `seek` to a
    position goes on exactly there. `rows` gives every row once, in file order.
    Raises: DataError: a missing file, a bad row (its number and field), no row left.
    """

    @property
    def identity(self) -> str:
        """Changes when the rows or the seed change: a checkpoint remembers it."""
        ...

    @property
    def position(self) -> Position: ...

    def draw(self) -> Prompt:
        """The next row, for ever."""
        ...

    def seek(self, position: Position) -> None:
        """Go to a position that this source (same identity) was at."""
        ...

    def rows(self) -> Iterator[Prompt]:
        """Every row exactly once."""
        ...

    def __len__(self) -> int: ...
