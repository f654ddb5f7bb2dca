"""When evaluations run, and where their results go: between steps, or beside training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hexpo.application.evaluate import EvaluationReport, Evaluator
from hexpo.application.ports.tracker import Tracker
from hexpo.domain.errors import IllegalTransition
from hexpo.domain.metrics import latest


class Validation:
    """Reports every evaluation under the version that it measured, in the order of steps (N5).

    One that runs beside training is reported at the step that is the last one when it ends; its
    own step is `evaluate/<name>/step`. Where it takes longer than the time to the next, that one
    starts when it ends, and only the newest of several waits.
    """

    def __init__(self, evaluator: Evaluator | None, tracker: Tracker) -> None:
        """Args: evaluator: None: there is nothing to measure, and every call does nothing."""
        self._evaluator, self._tracker = evaluator, tracker
        self._task: asyncio.Task[None] | None = None
        self._due: int | None = None
        self._reports: list[EvaluationReport] = []

    @property
    def reports(self) -> Sequence[EvaluationReport]:
        """All so far."""
        return tuple(self._reports)

    async def run(self, step: int) -> None:
        """Measure now, while training waits."""
        if self._evaluator is None:
            return
        await self.flush()
        self._report(await self._evaluator.run(self._tracker), started=step, now=step)

    def start(self, step: int, tasks: asyncio.TaskGroup, *, present: Callable[[], int]) -> None:
        """Measure beside training, in a task of the run.

        Args: present: the last step that was reported, whenever it is asked.
        Raises: IllegalTransition: the evaluator was given no replicas to lease.
        """
        if self._evaluator is None:
            return
        if not self._evaluator.can_run_beside:
            raise IllegalTransition("this evaluator has no replicas to lease; run it between steps")
        self._due = step
        if self._task is None or self._task.done():
            name = f"evaluation beside step {step}"
            self._task = tasks.create_task(self._beside(self._evaluator, present), name=name)

    async def flush(self) -> None:
        """Wait for what runs beside training, so that its result is reported before the end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Give up what runs beside training: the run ends early."""
        self._due = None
        if self._task is not None:
            self._task.cancel()

    async def _beside(self, evaluator: Evaluator, present: Callable[[], int]) -> None:
        while (step := self._due) is not None:
            self._due = None
            report = await evaluator.run_beside()
            if report is not None:
                self._report(report, started=step, now=present())

    def _report(self, report: EvaluationReport, *, started: int, now: int) -> None:
        if self._evaluator is None:
            return
        name = self._evaluator.name
        self._reports.append(report)
        of_step = {f"evaluate/{name}/step": latest(float(started))}
        self._tracker.report(now, {**report.metrics, **of_step})
        self._tracker.samples(report.samples(now, name))
