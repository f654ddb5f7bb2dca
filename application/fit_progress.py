"""What a checkpoint of `fit` holds: the engines, and the place in the data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import attrs
import cattrs

from hexpo.application.checkpointing import LOOP, load_engines, save_engines
from hexpo.application.learning import Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.prompts import Position
from hexpo.application.progress import read_progress, write_progress
from hexpo.domain.errors import CheckpointError

PROGRESS = "fit.json"
"""The use case's part of a checkpoint folder."""

FORMAT = 1
"""Raised when a field changes its meaning; another format is refused."""

CONVERTER = cattrs.Converter()
"""Between `FitProgress` and what its file says."""


@attrs.frozen(kw_only=True)
class FitProgress:
    """Where a run stands between two steps."""

    step: int
    source: str
    """The source's identity: rows, their order, and which of them are read."""
    position: Position
    """Of the next row."""
    format: int = FORMAT


async def save(store: CheckpointStore, progress: FitProgress, *, learner: Learner) -> None:
    """Write a checkpoint, whole or not at all. Raises CheckpointError (full disk, ...)."""
    async with store.write(progress.step) as folder:
        await save_engines(learner, folder)
        await asyncio.to_thread(write_progress, folder / PROGRESS, progress, converter=CONVERTER)


async def restore(
    store: CheckpointStore, present: FitProgress, *, learner: Learner
) -> FitProgress | None:
    """Load the newest checkpoint into the engines; None where there is none.

    Raises: CheckpointError: a part is missing, or the run is another one than `present`.
    """
    checkpoint = await store.latest()
    if checkpoint is None:
        return None
    progress = _read(checkpoint.folder)
    if progress.source != present.source:
        raise CheckpointError(
            f"{checkpoint.folder} was trained on another data set, seed or limit"
            f" ({progress.source}, now {present.source}): its place in the data means nothing"
            " here. Restore them, or start a new run from its exported model"
        )
    await load_engines(learner, checkpoint.folder)
    return progress


def _read(folder: Path) -> FitProgress:
    if (folder / LOOP).is_file():
        raise CheckpointError(
            f"{folder} is a checkpoint of `hexpo train`; go on with that, or start a new run from"
            " its exported model"
        )
    return read_progress(folder / PROGRESS, FitProgress, known=FORMAT, converter=CONVERTER)
