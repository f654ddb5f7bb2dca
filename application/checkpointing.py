"""What a checkpoint of a run holds, and how a run goes on from it.

The position of the prompt source in a checkpoint is that of *admitted* prompts, and every prompt
that was admitted but not trained is listed with its number, its stamp and its place in the source:
a resumed run issues it again under the same number, so each prompt trains exactly once, with the
same random numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from hexpo.application.export import ENGINE
from hexpo.application.learning import POLICY, Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.prompts import Position
from hexpo.application.progress import read_progress, write_progress
from hexpo.application.rollouts import InFlight, Rollouts
from hexpo.domain.errors import CheckpointError
from hexpo.domain.moving import STILL, Moving
from hexpo.domain.schedule import Gate

LOOP = "loop.json"
"""The loop's part of a checkpoint folder."""

FORMAT = 1
"""Raised when a field changes its meaning; another format is refused."""


@attrs.frozen(kw_only=True)
class Progress:
    """Where the loop stands between two steps."""

    step: int
    version: int
    """The published policy version."""
    gate: Gate
    """Admission and accounting; between two steps no slot waits for a publication."""
    in_flight: tuple[InFlight, ...]
    source: str
    """The prompt source's identity."""
    position: Position
    moving: Moving = STILL
    """Coefficients and baselines for the next step."""
    rates: Mapping[str, float] = attrs.field(factory=dict)
    """Running pass rates by prompt id, where a curriculum keeps them."""
    format: int = FORMAT

    @staticmethod
    def of(step: int, rollouts: Rollouts, learner: Learner) -> Progress:
        """The present state of a loop that is between two steps."""
        return Progress(
            step=step,
            version=rollouts.gate.version,
            gate=rollouts.gate,
            in_flight=rollouts.in_flight,
            source=rollouts.source.identity,
            position=rollouts.source.position,
            moving=learner.moving,
            rates={} if rollouts.curriculum is None else dict(rollouts.curriculum.rates),
        )


def _converter() -> cattrs.Converter:
    """Writes the gate's masks as hexadecimal text: one bit a group makes numbers that are too
    long for decimal digits, which Python refuses from 4,300 on."""
    made, mask = cattrs.Converter(), override(unstruct_hook=hex, struct_hook=_mask)
    out = make_dict_unstructure_fn(Gate, made, alive_mask=mask, requeued_mask=mask)
    back = make_dict_structure_fn(Gate, made, alive_mask=mask, requeued_mask=mask)
    made.register_unstructure_hook(Gate, out)
    made.register_structure_hook(Gate, back)
    return made


def _mask(value: str | int, _: type[int]) -> int:
    return value if isinstance(value, int) else int(value, 16)


CONVERTER = _converter()
"""Between `Progress` and what its file says."""


async def save(
    store: CheckpointStore,
    progress: Progress,
    *,
    learner: Learner,
    taken: Callable[[], object] = lambda: None,
) -> None:
    """Write a checkpoint, whole or not at all. Raises CheckpointError (full disk, ...).

    Args: taken: called when all engines have been read: training may go on.
    """
    async with store.write(progress.step) as folder:
        await save_engines(learner, folder, taken=taken)
        await asyncio.to_thread(write_progress, folder / LOOP, progress, converter=CONVERTER)


async def save_engines(
    learner: Learner, folder: Path, *, taken: Callable[[], object] = lambda: None
) -> None:
    """Write every engine's part; returns when all of it lies there. See `save` for `taken`."""
    for role, engine in learner.engines.items():
        await engine.save(folder / part_of(role))
    taken()
    for engine in learner.engines.values():
        await engine.saved()


async def load_engines(learner: Learner, folder: Path) -> None:
    """Restore every engine from its part."""
    for role, engine in learner.engines.items():
        await engine.load(folder / part_of(role))


def part_of(role: str) -> str:
    """The folder of a role's engine in a checkpoint."""
    return ENGINE if role == POLICY else role


async def restore(
    store: CheckpointStore, *, learner: Learner, rollouts: Rollouts
) -> Progress | None:
    """Load the newest checkpoint into engines, prompt source and gate; None where there is none.

    Raises: CheckpointError: a part is missing, or the run is another one.
    """
    checkpoint = await store.latest()
    if checkpoint is None:
        return None
    file = checkpoint.folder / LOOP
    progress = read_progress(file, Progress, known=FORMAT, converter=CONVERTER)
    _require_same_run(progress, rollouts, checkpoint.folder)
    await load_engines(learner, checkpoint.folder)
    learner.moving = learner.moving.resumed(progress.moving)
    if rollouts.curriculum is not None:
        rollouts.curriculum.restore(progress.rates)
    rollouts.source.seek(progress.position)
    rollouts.restore(progress.gate, progress.in_flight)
    return progress


def _require_same_run(progress: Progress, rollouts: Rollouts, folder: Path) -> None:
    if progress.source != rollouts.source.identity:
        raise CheckpointError(
            f"{folder} was trained on another data set or seed ({progress.source}, now"
            f" {rollouts.source.identity}): its place in the data means nothing here. Restore"
            " them, or start a new run from its exported model"
        )
    if progress.gate.plan != rollouts.gate.plan:
        raise CheckpointError(
            f"{folder} was saved with {progress.gate.plan}, now {rollouts.gate.plan}: groups in"
            " flight cannot be accounted for. Restore prompts per step, max_staleness and order,"
            " or start a new run from its exported model"
        )
