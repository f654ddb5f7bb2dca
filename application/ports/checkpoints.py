"""Port: saves that are whole or absent."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import attrs


@attrs.frozen
class Checkpoint:
    """A complete save."""

    step: int
    folder: Path
    """Local and readable until the next save."""


class CheckpointStore(Protocol):
    """Keeps the last few saves of a run.

    Promises: `write` makes a save visible only when its block ended without error and everything
    is on disk; a crash at any byte leaves the previous one selected. Writing a step again
    replaces it. The last complete save is never removed.
    Raises: CheckpointError: the disk is full, a save is damaged; says which file and what to do.
    Cancellation: an unfinished save is removed now or at the next start.
    """

    def write(self, step: int) -> AbstractAsyncContextManager[Path]:
        """An empty folder to fill; kept on normal exit, removed on an error."""
        ...

    async def latest(self) -> Checkpoint | None:
        """The newest complete save."""
        ...

    async def steps(self) -> list[int]:
        """Steps of all complete saves, oldest first."""
        ...
