"""Use case: the one loop.

Synchronous, one-step-off and fully asynchronous training, colocated or separate, are settings of
it: freshness is one number (`max_staleness`), and 0 is on-policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import attrs

from hexpo.application.agreeing import Probe
from hexpo.application.checkpointing import Progress, restore, save
from hexpo.application.continuing import OnUpdate
from hexpo.application.evaluate import EvaluationReport, Evaluator
from hexpo.application.flow import Pauses
from hexpo.application.learning import Learner, Learnt, Lesson
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.residency import Residency
from hexpo.application.rollouts import Rollouts
from hexpo.application.samples import sample_of
from hexpo.application.tasks import first_failure
from hexpo.application.timing import Stopwatch
from hexpo.application.turns import Rule, Turns
from hexpo.application.validation import Validation
from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import Metrics, merge, values
from hexpo.domain.schedule.capacity import cut_evenly
from hexpo.domain.schedule.residency import Phase
from hexpo.domain.schedule.switching import should_train
from hexpo.domain.trajectory import Group

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Schedule:
    """What happens when. Steps count publications: one batch, trained and published."""

    steps: int
    """Where the run ends."""
    on_update: OnUpdate = OnUpdate.KEEP
    """What a weight update does to running requests."""
    parts: int = 1
    """A batch is trained in so many parts, each as soon as its groups are there. More than one
    needs an engine that generates while weights change, devices of its own, and no column that
    the policy itself scores before a batch's first optimizer step."""
    evaluate_every: int = 0
    """In steps; 0: only where `evaluate_first` and `evaluate_last` say so."""
    evaluate_first: bool = True
    evaluate_last: bool = True
    evaluate_beside: bool = False
    """Evaluations between the first and the last run on leased replicas while training goes on."""
    save_every: int = 0
    """In steps; 0: at the end and when interrupted."""
    probe_every: int = 0
    """In steps, and once at the start; 0: engines are not compared with the trainer."""


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
        residency: Residency | None = None,
        probe: Probe | None = None,
        gauges: Callable[[], Metrics] = dict,
        rule: Rule = should_train,
    ) -> None:
        """Args: residency: who gives way to whom on shared devices; None: nothing is shared.
        rule: when shared devices stop generating, where they may generate ahead.
        probe: compares the engines with the trainer, as often as the schedule says.
        gauges: what else is read once a step: the replicas' busy shares."""
        self._schedule, self._rollouts, self._learner = schedule, rollouts, learner
        self._rollout, self._transfer = rollout, transfer
        self._checkpoints, self._tracker = checkpoints, tracker
        self._validation = Validation(evaluator, tracker)
        self._residency, self._probe = residency or Residency(), probe
        self._gauges = gauges
        self._pauses, self._turns = Pauses(), Turns(rollouts.meter, rule)
        if schedule.parts > 1 and self._residency.takes_turns:
            raise WrongValue(
                f"a batch cannot be trained in {schedule.parts} parts on devices that generation"
                " shares: while it waits for the next part the policy is away; use 1"
            )
        self._stop = asyncio.Event()
        self._step = 0
        self._saved: int | None = None
        self._saving: asyncio.Task[None] | None = None
        self._progress = Progress.of(0, rollouts, learner)
        self._history: list[dict[str, float]] = []

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
        measured = self._validation.reports
        return RunReport(
            step=self._step,
            finished=finished,
            history=self._history,
            first_evaluation=measured[0] if measured else None,
            last_evaluation=measured[-1] if measured else None,
        )

    async def _run(self) -> None:
        await self._residency.arrange(Phase.GENERATE)
        await self._restore()
        self._tracker.begin(title="training", steps=self._schedule.steps, first_step=self._step)
        if self._schedule.probe_every:
            await self._compared()
        if self._step == 0 and self._schedule.evaluate_first:
            await self._validation.run(self._step)
        async with asyncio.TaskGroup() as tasks:
            feed = tasks.create_task(self._rollouts.run(), name="rollouts")
            try:
                while self._step < self._schedule.steps and not self._stop.is_set():
                    await self._next_step(tasks)
                feed.cancel()  # what nobody will train any more must not fail the end
                if self._stop.is_set():
                    self._validation.cancel()
                await self._validation.flush()
                await self._save(tasks)
                await self._written()
            finally:
                feed.cancel()

    async def _next_step(self, tasks: asyncio.TaskGroup) -> None:
        watch = Stopwatch()
        lesson = Lesson()
        parts = await self._take(lesson, watch)
        if not parts:
            return
        groups = [group for part in parts for group in part]
        learnt, sent = await self._learn(lesson, parts[-1], watch)
        if _due(self._step + 1, self._schedule.probe_every):
            with watch("probe"):
                sent = merge([sent, await self._compared()])
        self._step += 1
        self._rollouts.published(learnt.version)
        self._progress = Progress.of(self._step, self._rollouts, self._learner)
        self._tracker.samples(await asyncio.to_thread(_samples, groups, self._step))
        self._report(
            [learnt.metrics, sent, self._rollouts.metrics(), watch.metrics(), self._gauges()]
        )
        last = self._step >= self._schedule.steps
        if last:
            self._rollouts.close()
        await self._evaluate(tasks, last=last)
        if _due(self._step, self._schedule.save_every):
            await self._save(tasks)
        # Only now are the freed slots filled: an evaluation and a save see an engine at rest when
        # nothing may run ahead, so that an on-policy run can be repeated bit for bit.
        if not last:
            self._rollouts.fill()

    async def _take(self, lesson: Lesson, watch: Stopwatch) -> list[list[Group]]:
        """Take a batch, part by part, and train on all but the last; nothing where the run was
        stopped first. Once a part is trained the batch is finished: the weights have changed."""
        parts: list[list[Group]] = []
        for most in cut_evenly(self._rollouts.gate.plan.groups, self._schedule.parts):
            if parts:
                await self._learner.add(lesson, parts[-1], watch)
            with watch("wait"):
                if self._chooses_turns:
                    await self._turns.over(self._rollouts.ready, self._stop)
                part = await self._rollouts.take(None if parts else self._stop, most=most)
            if part is None:
                return []
            parts.append(part)
        return parts

    @property
    def _chooses_turns(self) -> bool:
        """Devices are shared, and generation may go on when a batch is complete."""
        numbers = self._rollouts.gate.plan
        return self._residency.takes_turns and numbers.capacity > numbers.groups

    async def _learn(
        self, lesson: Lesson, groups: Sequence[Group], watch: Stopwatch
    ) -> tuple[Learnt, Metrics]:
        """Train on the groups and bring the new version to the rollout, on shared devices or not.

        Where devices are shared, generation stops before training; else only for the transfer.
        """
        mode = self._schedule.on_update.pause_mode
        async with AsyncExitStack() as paused:
            pause = self._pauses.during(self._rollout, mode)
            if self._residency.takes_turns:
                paused.enter_context(self._turns.away(watch.busy))
                with watch("switch"):
                    await paused.enter_async_context(pause)
            async with self._residency.phase(Phase.TRAIN) as turn:
                await self._learner.add(lesson, groups, watch)
                learnt = await self._learner.close(lesson)
                with watch("publish"):
                    if not self._residency.takes_turns:
                        await paused.enter_async_context(pause)
                    await turn.become(Phase.TRANSFER)
                    sent = await self._transfer.transfer(learnt.version)
        return learnt, merge([sent, self._pauses.metrics()])

    async def _evaluate(self, tasks: asyncio.TaskGroup, *, last: bool) -> None:
        chosen = self._schedule
        if last and chosen.evaluate_last:
            await self._validation.run(self._step)
        elif _due(self._step, chosen.evaluate_every):
            if chosen.evaluate_beside:
                self._validation.start(self._step, tasks, present=lambda: self._step)
            else:
                await self._validation.run(self._step)

    async def _compared(self) -> Metrics:
        """Raises EngineFailed: an engine does not compute what the trainer does (C1)."""
        return {} if self._probe is None else await self._probe.check(self._rollout.version)

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
        async with (
            self._pauses.during(self._rollout, self._schedule.on_update.pause_mode),
            self._residency.phase(Phase.TRANSFER),
        ):
            await self._transfer.transfer(progress.version)
        self._pauses.metrics()  # that pause is no step's
        log.info("resumed at step %d", progress.step)

    async def _save(self, tasks: asyncio.TaskGroup) -> None:
        """Begin a checkpoint, after the one before: training goes on when engines are read."""
        if self._saved == self._step:
            return
        await self._written()
        taken = asyncio.Event()
        saving = save(self._checkpoints, self._progress, learner=self._learner, taken=taken.set)
        self._saving = tasks.create_task(saving, name="checkpoint")
        waiting = asyncio.ensure_future(taken.wait())
        try:
            await asyncio.wait([self._saving, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._saved = self._step

    async def _written(self) -> None:
        """Wait for the checkpoint that is being written."""
        saving, self._saving = self._saving, None
        if saving is not None:
            await saving


def _samples(groups: Sequence[Group], step: int) -> list[Sample]:
    return [sample_of(row, step=step, phase="train") for group in groups for row in group.rows]


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
