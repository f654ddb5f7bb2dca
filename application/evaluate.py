"""Use case: measure a policy on rows that it does not train on, each exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from hexpo.application.grading import Player
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.application.samples import sample_of
from hexpo.application.tasks import apart, first_failure
from hexpo.domain.errors import DataError, EngineFailed, NotEnough, WrongValue
from hexpo.domain.evaluation import Answer, Report, evaluate
from hexpo.domain.metrics import Metrics, latest, merge
from hexpo.domain.trajectory import Graded, Group, Scored, Ticket

log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False)
class EvaluationReport:
    """What one evaluation measured."""

    version: int
    """The policy version measured."""
    report: Report
    metrics: Metrics
    groups: tuple[Group, ...]
    """Every row and its answers, in file order."""

    def samples(self, step: int, name: str) -> list[Sample]:
        """Records of all answers."""
        return [
            sample_of(graded, step=step, phase=f"evaluate/{name}")
            for group in self.groups
            for graded in group.rows
        ]


class Lessor(Protocol):
    """Who spares replicas at one version (`Replicas`)."""

    def lease(self, count: int) -> AbstractAsyncContextManager[RolloutEngine]: ...


@attrs.frozen(kw_only=True, eq=False)
class Beside:
    """How an evaluation runs while training goes on."""

    lessor: Lessor
    player: Callable[[RolloutEngine], Player]
    """Plays on the replicas that were spared."""
    replicas: int = 1
    """How many are asked for."""
    tries: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """Leases that are taken before a failure of the leased replicas is the evaluation's."""


class Evaluator:
    """Asks every row of a source `samples` times and grades the answers."""

    def __init__(
        self,
        source: PromptSource,
        player: Player,
        rollout: RolloutEngine,
        *,
        samples: int,
        at_once: int = 64,
        name: str = "held-out",
        ks: Sequence[int] | None = None,
        beside: Beside | None = None,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Args: at_once: rows in play together. ks: the k of pass@k and majority@k; powers of two
        by default. beside: what `run_beside` needs; None: it runs as `run` does.
        refresh: brings `rollout` to the present version, where no transfer does."""
        self._source, self._player, self._rollout = source, player, rollout
        self._samples, self._at_once, self._ks = samples, at_once, ks
        self.name, self._beside, self._refresh = name, beside, refresh

    async def run(self, tracker: Tracker | None = None) -> EvaluationReport:
        """Measure the present version. Raises DataError: the source has no row (E3)."""
        if self._refresh is not None:
            await self._refresh()
        return await self._measure(self._player, self._rollout.version, tracker)

    @property
    def can_run_beside(self) -> bool:
        """Whether `run_beside` has replicas to ask for."""
        return self._beside is not None

    async def run_beside(self) -> EvaluationReport | None:
        """Measure the version of this moment on replicas of its own, whatever is published
        meanwhile. Shows no progress: the training step does.

        Returns: None where no replica can be spared any more, since others are fenced, or where
            those that were leased failed, too: whether the run can go on is the others' matter.
        Raises: DataError: the source has no row.
        """
        chosen = self._beside
        if chosen is None:
            raise WrongValue(f"evaluation {self.name!r} was built with no replicas to lease")
        for left in reversed(range(chosen.tries)):
            try:
                return await apart(self._on_lease(chosen))
            except NotEnough as reason:
                log.warning("evaluation %r is left out: %s", self.name, reason)
                return None
            except EngineFailed as failure:
                then = "starts again" if left else "is left out"
                log.warning("evaluation %r %s: %s", self.name, then, failure)
        return None

    async def _on_lease(self, chosen: Beside) -> EvaluationReport:
        async with chosen.lessor.lease(chosen.replicas) as rollout:
            try:
                return await self._measure(chosen.player(rollout), rollout.version, None)
            except BaseExceptionGroup as group:
                raise first_failure(group) from None

    async def _measure(
        self, player: Player, version: int, tracker: Tracker | None
    ) -> EvaluationReport:
        tickets = [
            Ticket(number=number, prompt=prompt, version=version, samples=self._samples)
            for number, prompt in enumerate(self._source.rows())
        ]
        if not tickets:
            raise DataError(f"evaluation {self.name!r} has no row; check data.evaluation")
        room, done = asyncio.Semaphore(self._at_once), 0

        async def play(ticket: Ticket) -> Group:
            nonlocal done
            async with room:
                group = await player.play(ticket)
            done += 1
            if tracker is not None:
                tracker.progress(done, len(tickets), f"evaluating {self.name}")
            return group

        async with asyncio.TaskGroup() as tasks:
            plays = [tasks.create_task(play(ticket)) for ticket in tickets]
        groups = tuple(task.result() for task in plays)
        report = evaluate([_answer(row) for group in groups for row in group.rows], ks=self._ks)
        prefix = f"evaluate/{self.name}"
        metrics = merge(
            [
                {f"{prefix}/{key}": measure for key, measure in report.metrics().items()},
                {f"{prefix}/version": latest(version)},
            ]
        )
        return EvaluationReport(version=version, report=report, metrics=metrics, groups=groups)


def _answer(row: Graded) -> Answer:
    outcome, episode = row.outcome, row.trajectory
    if not isinstance(outcome, Scored):
        return Answer(prompt_id=episode.prompt.id, score=None)
    # A grader that parses the answer says what it read; else answers are compared as text.
    key = str(outcome.extra.get("answer", episode.text.strip()))
    return Answer(prompt_id=episode.prompt.id, score=outcome.value, key=key)
