"""Use case: the one loop.

Synchronous, one-step-off and fully asynchronous training, colocated or separate, are settings of
it: freshness is one number (`max_staleness`), and 0 is on-policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import attrs

from hexpo.application.checkpointing import Progress, restore, save
from hexpo.application.evaluate import EvaluationReport, Evaluator
from hexpo.application.learning import Learner
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.rollout import PauseMode, RolloutEngine
from hexpo.application.ports.tracker import Tracker
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.rollouts import Rollouts
from hexpo.application.samples import sample_of
from hexpo.application.tasks import first_failure
from hexpo.application.timing import Stopwatch
from hexpo.domain.metrics import Metrics, merge, values

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Schedule:
    """What happens when. Steps count publications: one batch, trained and published."""

    steps: int
    """Where the run ends."""
    on_update: PauseMode = PauseMode.KEEP
    """What a weight update does to running requests."""
    evaluate_every: int = 0
    """In steps; 0: only where `evaluate_first` and `evaluate_last` say so."""
    evaluate_first: bool = True
    evaluate_last: bool = True
    save_every: int = 0
    """In steps; 0: at the end and when interrupted."""


@attrs.frozen(kw_only=True, eq=False)
class RunReport:
    """What a run did."""

    step: int
    """The last step that was trained and published."""
    finished: bool
    """False: it was stopped before its last step; resume goes on there."""
    history: Sequence[Mapping[str, float]]
    """Reduced metrics of every step of this process, in order; `step` is among them."""
    first_evaluation: EvaluationReport | None
    last_evaluation: EvaluationReport | None


class Trainer:
    """Runs the loop through ports. Made once, run once."""

    def __init__(
        self,
        schedule: Schedule,
        *,
        rollouts: Rollouts,
        learner: Learner,
        rollout: RolloutEngine,
        transfer: WeightTransfer,
        checkpoints: CheckpointStore,
        tracker: Tracker,
        evaluator: Evaluator | None = None,
    ) -> None:
        self._schedule, self._rollouts, self._learner = schedule, rollouts, learner
        self._rollout, self._transfer = rollout, transfer
        self._checkpoints, self._tracker, self._evaluator = checkpoints, tracker, evaluator
        self._stop = asyncio.Event()
        self._step = 0
        self._saved: int | None = None
        self._progress = Progress.of(0, rollouts, learner)
        self._history: list[dict[str, float]] = []
        self._evaluations: list[EvaluationReport] = []

    def stop(self) -> None:
        """Ask the run to end: a step that is being trained is finished and published, rollouts in
        flight are put back, a checkpoint is written. Call from the event loop's thread."""
        self._stop.set()

    async def run(self) -> RunReport:
        """Train to the last step, from the newest checkpoint if there is one.

        Raises: the first failure of whatever failed, as it was raised there.
        """
        try:
            await self._run()
        except BaseExceptionGroup as group:
            raise first_failure(group) from None
        finally:
            self._tracker.close()
        finished = self._step >= self._schedule.steps
        ends = (self._evaluations[0], self._evaluations[-1]) if self._evaluations else (None, None)
        return RunReport(
            step=self._step,
            finished=finished,
            history=self._history,
            first_evaluation=ends[0],
            last_evaluation=ends[1],
        )

    async def _run(self) -> None:
        await self._restore()
        self._tracker.begin(title="training", steps=self._schedule.steps, first_step=self._step)
        if self._step == 0 and self._schedule.evaluate_first:
            await self._evaluate()
        async with asyncio.TaskGroup() as tasks:
            feed = tasks.create_task(self._rollouts.run(), name="rollouts")
            try:
                while self._step < self._schedule.steps and not self._stop.is_set():
                    await self._next_step()
                await self._save()
            finally:
                feed.cancel()

    async def _next_step(self) -> None:
        watch = Stopwatch()
        with watch("wait"):
            groups = await self._rollouts.take(self._stop)
        if groups is None:
            return
        learnt = await self._learner.learn(groups, watch)
        with watch("publish"):
            sent = await self._publish(learnt.version)
        self._step += 1
        self._rollouts.published(learnt.version)
        self._progress = Progress.of(self._step, self._rollouts, self._learner)
        self._tracker.samples(
            [
                sample_of(row, step=self._step, phase="train")
                for group in groups
                for row in group.rows
            ]
        )
        self._report([learnt.metrics, sent, self._rollouts.metrics(), watch.metrics()])
        last = self._step >= self._schedule.steps
        if _due(self._step, self._schedule.evaluate_every) or (
            last and self._schedule.evaluate_last
        ):
            await self._evaluate()
        if _due(self._step, self._schedule.save_every):
            await self._save()
        # Only now are the freed slots filled: an evaluation and a save see an engine at rest when
        # nothing may run ahead, so that an on-policy run can be repeated bit for bit.
        if not last:
            self._rollouts.fill()

    async def _publish(self, version: int) -> Metrics:
        await self._rollout.pause(self._schedule.on_update)
        metrics = await self._transfer.transfer(version)
        await self._rollout.resume()
        return metrics

    async def _evaluate(self) -> None:
        if self._evaluator is None:
            return
        report = await self._evaluator.run(self._tracker)
        self._evaluations.append(report)
        self._tracker.report(self._step, report.metrics)
        self._tracker.samples(report.samples(self._step, self._evaluator.name))

    def _report(self, parts: Sequence[Metrics]) -> None:
        metrics = merge(parts)
        self._tracker.report(self._step, metrics)
        self._history.append({"step": float(self._step), **values(metrics)})

    async def _restore(self) -> None:
        progress = await restore(self._checkpoints, learner=self._learner, rollouts=self._rollouts)
        if progress is None:
            return
        self._step = self._saved = progress.step
        self._progress = progress
        await self._publish(progress.version)
        log.info("resumed at step %d", progress.step)

    async def _save(self) -> None:
        if self._saved == self._step:
            return
        await save(self._checkpoints, self._progress, learner=self._learner)
        self._saved = self._step


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
