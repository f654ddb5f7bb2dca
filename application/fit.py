"""Use case: learning from answers that are given - demonstrations, pairs, judged answers.

There is no rollout and no gate: rows come from a data set in a seeded order, and everything after
that is the loop's own code - row store, scorers, objective, engines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import attrs

from hexpo.application.examples import ExampleReader
from hexpo.application.fit_progress import FitProgress, restore, save
from hexpo.application.held_out import HeldOut, ReferencePoint
from hexpo.application.learning import Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.tracker import Tracker
from hexpo.application.timing import Stopwatch
from hexpo.domain.batch import Batch
from hexpo.domain.batch.examples import Unit, lay_out
from hexpo.domain.metrics import Metrics, latest, merge, total, values

log = logging.getLogger(__name__)

FIT = "fit"
"""Name of the objective's term: `loss/fit`, `fit/accuracy`, ..."""


@attrs.frozen(kw_only=True)
class FitSchedule:
    """What happens when. Steps count publications: some rows, trained and published."""

    steps: int
    """Where the run ends."""
    rows: int
    """Rows of the data set that a step learns from; a pair is one row."""
    evaluate_every: int = 0
    """In steps; 0: only where `evaluate_first` says so, and at the end."""
    evaluate_first: bool = True
    save_every: int = 0
    """In steps; 0: at the end and when interrupted."""


@attrs.frozen(kw_only=True, eq=False)
class FitReport:
    """What a run did."""

    step: int
    """The last step that was trained and published."""
    finished: bool
    """False: it was stopped before its last step; resume goes on there."""
    history: Sequence[Mapping[str, float]]
    """Reduced metrics of every step of this process, in order; `step` is among them."""
    first_evaluation: Mapping[str, float] | None
    """Reduced held-out metrics, by their names without `evaluate/held-out/`."""
    last_evaluation: Mapping[str, float] | None


class Fit:
    """Learns from rows that bring their answers. Made once, run once."""

    def __init__(
        self,
        schedule: FitSchedule,
        *,
        source: PromptSource,
        reader: ExampleReader,
        learner: Learner,
        checkpoints: CheckpointStore,
        tracker: Tracker,
        held_out: HeldOut | None = None,
        reference_point: ReferencePoint | None = None,
    ) -> None:
        """Args: source: rows that `reader` can read. held_out: what is measured beside; None:
        nothing. reference_point: for a loss that reads one (KTO)."""
        self._schedule, self._source, self._reader = schedule, source, reader
        self._learner, self._checkpoints, self._tracker = learner, checkpoints, tracker
        self._held_out, self._reference_point = held_out, reference_point
        self._stop = asyncio.Event()
        self._progress = FitProgress(step=0, source=source.identity, position=source.position)
        self._saved: int | None = None
        self._history: list[dict[str, float]] = []
        self._measured: list[Mapping[str, float]] = []

    def stop(self) -> None:
        """Ask the run to end: the present step is finished, a checkpoint is written. Call from
        the event loop's thread."""
        self._stop.set()

    async def run(self) -> FitReport:
        """Train to the last step, from the newest checkpoint if there is one.

        Raises: CheckpointError: the checkpoint is of another data set. Whatever failed first.
        """
        try:
            await self._run()
        finally:
            self._tracker.close()
        measured = self._measured
        return FitReport(
            step=self._progress.step,
            finished=self._progress.step >= self._schedule.steps,
            history=self._history,
            first_evaluation=measured[0] if measured else None,
            last_evaluation=measured[-1] if measured else None,
        )

    async def _run(self) -> None:
        chosen = self._schedule
        await self._restore()
        first = self._progress.step
        self._tracker.begin(title="fitting", steps=chosen.steps, first_step=first)
        if first == 0 and chosen.evaluate_first:
            await self._evaluate()
        while self._progress.step < chosen.steps and not self._stop.is_set():
            await self._next_step()
            step = self._progress.step
            if step == chosen.steps or _due(step, chosen.evaluate_every):
                await self._evaluate()
            if _due(step, chosen.save_every):
                await self._save()
        await self._save()

    async def _next_step(self) -> None:
        watch = Stopwatch()
        units = self._draw()
        batch = lay_out(units)
        counted = _counts(batch, units)
        if self._reference_point is not None:
            with watch("score"):
                batch, point = await self._reference_point.added(
                    batch, units, updates=self._learner.updates
                )
            counted = {**counted, **point}
        learnt = await self._learner.fit(batch, watch)
        self._progress = attrs.evolve(
            self._progress, step=self._progress.step + 1, position=self._source.position
        )
        epochs = self._source.position.epoch
        self._report([learnt.metrics, counted, watch.metrics(), {"data/epoch": latest(epochs)}])

    def _draw(self) -> list[Unit]:
        """The next rows; a row of which nothing is to be learnt was left out before."""
        rows = [self._source.draw() for _ in range(self._schedule.rows)]
        return [self._reader.read(row) for row in rows]

    def _report(self, parts: Sequence[Metrics]) -> None:
        step, metrics = self._progress.step, merge(parts)
        self._tracker.report(step, metrics)
        self._history.append({"step": float(step), **values(metrics)})

    async def _evaluate(self) -> None:
        if self._held_out is None:
            return
        measured = await self._held_out.measure()
        self._measured.append(values(measured))
        named = {f"evaluate/{self._held_out.name}/{name}": one for name, one in measured.items()}
        self._tracker.report(self._progress.step, named)

    async def _restore(self) -> None:
        progress = await restore(self._checkpoints, self._progress, learner=self._learner)
        if progress is not None:
            self._progress, self._saved = progress, progress.step
            self._source.seek(progress.position)
            log.info("resumed at step %d", progress.step)

    async def _save(self) -> None:
        if self._saved != self._progress.step:
            await save(self._checkpoints, self._progress, learner=self._learner)
            self._saved = self._progress.step


def _counts(batch: Batch, units: Sequence[Unit]) -> Metrics:
    return {
        "tokens/trained": total(float(batch.sequences["trained"].sum())),
        "tokens/read": total(float(batch.sequences.lengths.sum())),
        "rows/trained": total(float(len(units))),
    }


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
