"""What a checkpoint of `fit` holds: the engines, and the place in the data."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import attrs
import cattrs

from hexpo.application.checkpointing import LOOP, load_engines, save_engines
from hexpo.application.learning import Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.prompts import Position
from hexpo.domain.errors import CheckpointError

PROGRESS = "fit.json"
"""The use case's part of a checkpoint folder."""

FORMAT = 1
"""Raised when a field changes its meaning; another format is refused."""


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
        text = json.dumps(cattrs.unstructure(progress), indent=1)
        await asyncio.to_thread((folder / PROGRESS).write_text, text)


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
    path = folder / PROGRESS
    if (folder / LOOP).is_file():
        raise CheckpointError(
            f"{folder} is a checkpoint of `hexpo train`; go on with that, or start a new run from"
            " its exported model"
        )
    try:
        progress = cattrs.structure(json.loads(path.read_text()), FitProgress)
    except (OSError, ValueError, cattrs.BaseValidationError) as error:
        raise CheckpointError(
            f"{path} is missing or damaged ({error}); delete this checkpoint to resume from the"
            " one before it"
        ) from error
    if progress.format != FORMAT:
        raise CheckpointError(
            f"{path} has format {progress.format}, this hexpo reads {FORMAT}; resume it with the"
            " version that wrote it"
        )
    return progress
