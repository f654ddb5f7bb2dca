"""Use case: the one loop.

Synchronous, one-step-off and fully asynchronous training, colocated or separate, are settings of
it: freshness is one number (`max_staleness`), and 0 is on-policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from hexpo.application.agreeing import Probe
from hexpo.application.evaluate import Evaluator
from hexpo.application.handover import Handover
from hexpo.application.learning import Learner, Lesson
from hexpo.application.ports.checkpoints import CheckpointStore
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tracker import Tracker
from hexpo.application.ports.transfer import WeightTransfer
from hexpo.application.residency import Residency
from hexpo.application.rollouts import Rollouts
from hexpo.application.samples import samples_of
from hexpo.application.saving import Saving
from hexpo.application.schedule import RunReport, Schedule, Side
from hexpo.application.tasks import first_failure
from hexpo.application.timing import Stopwatch
from hexpo.application.turns import Rule
from hexpo.application.validation import Validation
from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import Metrics, merge, values
from hexpo.domain.schedule.capacity import cut_evenly
from hexpo.domain.schedule.residency import Phase
from hexpo.domain.schedule.switching import should_train
from hexpo.domain.trajectory import Group

log = logging.getLogger(__name__)


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
        self._rollout, self._tracker = rollout, tracker
        self._probe, self._gauges = probe, gauges
        self._residency = residency or Residency()
        self._handover = Handover(
            rollouts,
            rollout,
            transfer,
            residency=self._residency,
            mode=schedule.on_update.pause_mode,
            rule=rule,
        )
        self._saving = Saving(checkpoints, rollouts=rollouts, learner=learner)
        self._validation = Validation(evaluator, tracker)
        if schedule.parts > 1 and self._handover.takes_turns:
            raise WrongValue(
                f"a batch cannot be trained in {schedule.parts} parts on devices that generation"
                " shares: while it waits for the next part the policy is away; use 1"
            )
        self._stop = asyncio.Event()
        self._step = 0
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
        measured = self._validation.reports
        return RunReport(
            step=self._step,
            finished=self._schedule.is_over(self._step),
            history=self._history,
            first_evaluation=measured[0] if measured else None,
            last_evaluation=measured[-1] if measured else None,
        )

    async def _run(self) -> None:
        await self._residency.arrange(Phase.GENERATE)
        progress = await self._saving.restore()
        if progress is not None:
            self._step = progress.step
            await self._handover.bring(progress.version)
            log.info("resumed at step %d", progress.step)
        self._tracker.begin(title="training", steps=self._schedule.steps, first_step=self._step)
        if self._schedule.probe_every:
            await self._compared()
        if self._step == 0 and self._schedule.evaluate_first:
            await self._validation.run(self._step)
        async with asyncio.TaskGroup() as tasks:
            feed = tasks.create_task(self._rollouts.run(), name="rollouts")
            try:
                while not (self._schedule.is_over(self._step) or self._stop.is_set()):
                    await self._next_step(tasks)
                feed.cancel()  # what nobody will train any more must not fail the end
                if self._stop.is_set():
                    self._validation.cancel()
                await self._validation.flush()
                await self._saving.begin(tasks)
                await self._saving.end()
            finally:
                feed.cancel()

    async def _next_step(self, tasks: asyncio.TaskGroup) -> None:
        watch, lesson = Stopwatch(), Lesson()
        parts = await self._take(lesson, watch)
        if not parts:
            return
        groups = [group for part in parts for group in part]
        learnt, sent = await self._handover.learn(self._learner, lesson, parts[-1], watch)
        if self._schedule.probes(self._step + 1):
            with watch("probe"):
                sent = merge([sent, await self._compared()])
        self._step += 1
        self._rollouts.published(learnt.version)
        self._saving.note(self._step)
        self._tracker.samples(await asyncio.to_thread(samples_of, groups, step=self._step))
        self._report(
            [learnt.metrics, sent, self._rollouts.metrics(), watch.metrics(), self._gauges()]
        )
        last = self._schedule.is_over(self._step)
        if last:
            self._rollouts.close()
        await self._evaluate(tasks, last=last)
        if self._schedule.saves(self._step):
            await self._saving.begin(tasks)
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
                await self._handover.generated(self._stop)
                part = await self._rollouts.take(None if parts else self._stop, most=most)
            if part is None:
                return []
            parts.append(part)
        return parts

    async def _evaluate(self, tasks: asyncio.TaskGroup, *, last: bool) -> None:
        chosen = self._schedule
        if not chosen.evaluates(self._step):
            return
        if chosen.side is Side.TRAINER and not last:
            self._rollouts.fill()  # who answers is not who generates
        if chosen.side is Side.LEASE and not (last and chosen.evaluate_last):
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
