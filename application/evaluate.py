"""Use case: measure a policy on rows that it does not train on, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs

from hexpo.application.grading import Player
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.application.samples import sample_of
from hexpo.domain.errors import DataError
from hexpo.domain.evaluation import Answer, Report, evaluate
from hexpo.domain.metrics import Metrics, latest, merge
from hexpo.domain.trajectory import Graded, Group, Scored, Ticket


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
    ) -> None:
        """Args: at_once: rows in play together. ks: the k of pass@k and majority@k; powers of two
        by default."""
        self._source, self._player, self._rollout = source, player, rollout
        self._samples, self._at_once, self._ks = samples, at_once, ks
        self.name = name

    async def run(self, tracker: Tracker | None = None) -> EvaluationReport:
        """Measure the present version. Raises DataError: the source has no row (E3)."""
        version = self._rollout.version
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
                group = await self._player.play(ticket)
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
