"""Use case: a checkpoint becomes a model folder that other programs load."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.application.ports.training import TrainingEngine
from hexpo.domain.errors import CheckpointError

ENGINE = "engine"
"""The engine's part of a checkpoint folder."""


async def export(
    folder: Path, *, engine: TrainingEngine, tokenizer: Tokenizer, checkpoints: CheckpointStore
) -> int:
    """Write the newest checkpoint as a Hugging Face folder; returns its step.

    Raises: CheckpointError: the run has no complete checkpoint.
    """
    checkpoint = await checkpoints.latest()
    if checkpoint is None:
        raise CheckpointError(
            "this run has no complete checkpoint to export; train at least one step, or set"
            " checkpoint.every lower"
        )
    await engine.load(checkpoint.folder / ENGINE)
    await write_model(folder, engine=engine, tokenizer=tokenizer)
    return checkpoint.step


async def write_model(folder: Path, *, engine: TrainingEngine, tokenizer: Tokenizer) -> None:
    """Write the engine's present weights and its tokenizer as one model folder."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    await engine.export(folder)
    await asyncio.to_thread(tokenizer.save, folder)
