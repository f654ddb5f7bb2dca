"""When checkpoints are written: one after the other, while training goes on."""

from __future__ import annotations

import asyncio

from hexpo.application.checkpointing import Progress, restore, save
from hexpo.application.learning import Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.rollouts import Rollouts


class Saving:
    """Writes where the loop stood after its last whole step, whenever it is asked."""

    def __init__(self, store: CheckpointStore, *, rollouts: Rollouts, learner: Learner) -> None:
        self._store, self._rollouts, self._learner = store, rollouts, learner
        self._progress = Progress.of(0, rollouts, learner)
        self._saved: int | None = None
        self._writing: asyncio.Task[None] | None = None

    async def restore(self) -> Progress | None:
        """Go on from the newest checkpoint; None where there is none."""
        progress = await restore(self._store, learner=self._learner, rollouts=self._rollouts)
        if progress is not None:
            self._progress, self._saved = progress, progress.step
        return progress

    def note(self, step: int) -> None:
        """The loop is between two steps: what is saved from now on is its present state."""
        self._progress = Progress.of(step, self._rollouts, self._learner)

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Write it in a task of the run, after the checkpoint before, unless that is the same
        step's. Returns when the engines are read: training may go on."""
        step = self._progress.step
        if self._saved == step:
            return
        await self.end()
        taken = asyncio.Event()
        saving = save(self._store, self._progress, learner=self._learner, taken=taken.set)
        self._writing = tasks.create_task(saving, name="checkpoint")
        waiting = asyncio.ensure_future(taken.wait())
        try:
            await asyncio.wait([self._writing, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._saved = step

    async def end(self) -> None:
        """Wait for the checkpoint that is being written. Raises what its writing raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing
