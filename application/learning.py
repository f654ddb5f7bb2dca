"""One batch becomes the next policy version: columns, advantages, optimizer steps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import attrs
import torch

from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.residency import Residency
from hexpo.application.timing import Stopwatch
from hexpo.domain.advantages.report import group_report
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.batch.assemble import Shaping, assemble
from hexpo.domain.correction.metrics import off_policy
from hexpo.domain.distillation.teachers import Routing
from hexpo.domain.estimators import Estimator
from hexpo.domain.masks.stored import KEPT
from hexpo.domain.metrics import Measure, Metrics, merge, total
from hexpo.domain.moving import STILL, Moving
from hexpo.domain.objective import Objective
from hexpo.domain.ragged import row_counts
from hexpo.domain.schedule.ages import Tally, tally
from hexpo.domain.schedule.residency import Phase
from hexpo.domain.trajectory import Group

POLICY = "policy"
"""The role of the model that answers; its version is the run's."""


@attrs.frozen(kw_only=True)
class LearningSettings:
    """How one batch is used."""

    updates: int = 1
    """Optimizer steps of one pass: the groups that come together are cut into so many parts."""
    passes: int = 1
    """How often the batch is gone through."""
    mask_cut: bool = False
    """Answers that the token budget cut train nothing."""
    components: tuple[str, ...] = ()
    """Names of the reward parts that are laid into the batch."""
    shaping: Shaping | None = None
    """What is added to the outcome that estimators see."""
    observes: bool = False
    """What was read in later turns is laid into the batch."""


@attrs.frozen(kw_only=True, eq=False)
class Role:
    """A model that learns from the batch, and what it minimises."""

    engine: TrainingEngine
    objective: Objective


@attrs.frozen(kw_only=True, eq=False)
class Recipe:
    """What is made of a batch before anything learns from it, in this order."""

    estimators: tuple[Estimator, ...]
    """One after the other on the whole batch; the last one's advantage is trained on."""
    choices: tuple[Estimator, ...] = ()
    """Token columns of each optimizer step, made before its first use: masks (`kept`), choices."""
    scorers: Mapping[str, Scorer] = attrs.field(factory=dict)
    """Who provides each scored column (`old`, `reference`, `value`, `teacher`, ...)."""
    routing: Routing | None = None
    """Which teacher each row has; None: nothing in the run has one."""

    @property
    def token_columns(self) -> frozenset[str]:
        """Token columns that are read."""
        made = (*self.estimators, *self.choices)
        return frozenset(name for one in made for name in one.needs.tokens)


@attrs.define(eq=False)
class Lesson:
    """A version in the making: what was learnt since the last one."""

    rows: list[Sequences] = attrs.field(factory=list)
    metrics: list[Metrics] = attrs.field(factory=list)
    tallies: list[Tally] = attrs.field(factory=list)
    """Which versions sampled what was trained."""


@attrs.frozen(kw_only=True, eq=False)
class Learnt:
    """What became of a batch."""

    version: int
    metrics: Metrics


class Learner:
    """Turns groups into a published version, through the row store and the engines.

    A critic, a reference or a teacher is data here: another role, or who provides a column.
    """

    def __init__(
        self,
        settings: LearningSettings,
        *,
        roles: Mapping[str, Role],
        store: RowStore,
        recipe: Recipe,
        moving: Moving = STILL,
        residency: Residency | None = None,
    ) -> None:
        """Args: roles: `policy`, and who else learns from the same batch (a critic).
        residency: who gives way to scorers on shared devices; None: nothing is shared."""
        self._settings, self._roles, self._store = settings, roles, store
        self._recipe, self.moving = recipe, moving
        self._residency = residency or Residency()

    @property
    def engines(self) -> dict[str, TrainingEngine]:
        """Who learns, by role: what a checkpoint holds."""
        return {name: role.engine for name, role in self._roles.items()}

    @property
    def updates(self) -> int:
        """Optimizer steps that `cut` makes of a batch."""
        return self._settings.updates

    async def add(self, lesson: Lesson, groups: Sequence[Group], watch: Stopwatch) -> None:
        """Train on some of a version's groups, as soon as they are there.

        Each optimizer step is a mean over its own groups alone, so it does not matter whether they
        came alone or with the rest of the batch; baselines and coefficients move at `close`.

        Raises: NonFinite: an engine skipped too many optimizer steps in a row.
        """
        chosen = self._settings
        batch, metrics = await asyncio.to_thread(  # a tenth of a second for a million tokens
            assemble,
            groups,
            mask_cut=chosen.mask_cut,
            components=chosen.components,
            shaping=chosen.shaping,
            observes=chosen.observes,
        )
        lesson.metrics += [metrics, self.moving.metrics(), _report(batch.sequences)]
        lesson.metrics += await self._train(batch, watch)
        lesson.rows.append(batch.sequences)
        lesson.tallies.append(await asyncio.to_thread(tally, batch))

    async def fit(self, batch: Batch, watch: Stopwatch) -> Learnt:
        """Train on given answers and publish. Nothing moves from step to step.

        Raises: NonFinite: an engine skipped too many optimizer steps in a row.
        """
        metrics = await self._train(batch, watch)
        return Learnt(version=await self._roles[POLICY].engine.publish(), metrics=merge(metrics))

    async def _train(self, batch: Batch, watch: Stopwatch) -> list[Metrics]:
        """Columns, advantages and optimizer steps of a batch."""
        rows, chosen = self._routed(batch.sequences), self._settings
        self._store.put(batch)
        try:
            with watch("score"):
                parts = await self._score(rows)
            rows, estimated = await self._estimate(rows)
            steps = [await self._choose(part) for part in cut(rows, chosen.updates)]
            parts += [estimated, self._off_policy(rows), *map(self._counted, steps)]
            with watch("train"):
                for _ in range(chosen.passes):
                    for step in steps:
                        parts += [await self._update(name, step) for name in self._roles]
        finally:
            self._store.drop(rows.ids)
        return parts

    async def close(self, lesson: Lesson) -> Learnt:
        """Publish what was learnt."""
        whole = merge(lesson.metrics)
        self.moving = self.moving.after(Sequences.cat(lesson.rows), whole)
        version = await self._roles[POLICY].engine.publish()
        ages = merge(tally.metrics(at=version - 1) for tally in lesson.tallies)
        return Learnt(version=version, metrics={**whole, **ages})

    @property
    def _scored(self) -> dict[str, Scorer]:
        """Who scores each column that anything reads."""
        wanted = self._recipe.token_columns.union(
            *(role.objective.token_columns for role in self._roles.values())
        )
        return {name: one for name, one in self._recipe.scorers.items() if name in wanted}

    async def _score(self, rows: Sequences) -> list[Metrics]:
        by_scorer: dict[Scorer, set[str]] = {}
        for column, scorer in self._scored.items():
            by_scorer.setdefault(scorer, set()).add(column)
        if not by_scorer:
            return []
        async with self._residency.phase(Phase.SCORE):
            return [await scorer.score(rows, columns) for scorer, columns in by_scorer.items()]

    async def _estimate(self, rows: Sequences) -> tuple[Sequences, Metrics]:
        metrics: list[Metrics] = []
        for one in self._recipe.estimators:
            estimator = self.moving.estimator(one)
            if estimator.per_token:
                metrics.append(await self._roles[POLICY].engine.compute(rows, estimator))
                rows = rows.without("advantage")  # that of the tokens counts
            else:
                rows = rows.with_columns(advantage=estimator.of_rows(rows))
        return rows, merge(metrics)

    async def _choose(self, step: Sequences) -> Sequences:
        """The rows of an optimizer step, with the token columns that belong to it."""
        for choice in self._recipe.choices:
            await self._roles[POLICY].engine.compute(step, choice)
        if not self._masks:
            return step
        stored, owner_T = (
            self._store.get(step.ids, self._masks),
            torch.repeat_interleave(step.lengths),
        )
        return step.with_columns(
            **{mask: row_counts(owner_T[stored[mask]], rows=len(step)) for mask in self._masks}
        )

    @property
    def _masks(self) -> list[str]:
        """Those of the policy's terms that choose among a step's tokens, or beside them."""
        terms = self._roles[POLICY].objective.terms
        return sorted({term.mask for term in terms} - {"trained"})

    @property
    def _narrows(self) -> bool:
        return KEPT in self._masks

    def _counted(self, step: Sequences) -> Metrics:
        """Tokens that each mask left."""
        return {f"tokens/{mask}": total(float(step[mask].sum())) for mask in self._masks}

    def _routed(self, rows: Sequences) -> Sequences:
        routing = self._recipe.routing
        return rows if routing is None else rows.with_columns(taught_by=routing.of(rows["role"]))

    def _off_policy(self, rows: Sequences) -> Metrics:
        """How far the sampler was from the proximal policy, and what the masks took."""
        if "old" not in self._scored:
            return {}
        names = ("old", "behaviour", "trained")
        stored = self._store.get(rows.ids, [*names, KEPT] if self._narrows else names)
        trained_T, owner_T = stored["trained"], torch.repeat_interleave(rows.lengths)
        measured = off_policy(
            stored["old"][trained_T], stored["behaviour"][trained_T], owner_T[trained_T]
        )
        metrics = {f"off_policy/{name}": measure for name, measure in measured.items()}
        if self._narrows:
            metrics["tokens/rejected"] = total(float((trained_T & ~stored[KEPT]).sum()))
        return metrics

    async def _update(self, name: str, step: Sequences) -> Metrics:
        role = self._roles[name]
        objective = self.moving.objective(role.objective) if name == POLICY else role.objective
        weighed = objective.weigh(step)
        loud = _loud(weighed, objective) if not self.moving.controls else weighed
        metrics = [
            await role.engine.accumulate(loud, objective),
            (await role.engine.step()).metrics,
            {"samples/left_out": total(float(len(weighed) - len(loud)))},
        ]
        return merge(metrics) if name == POLICY else _renamed(merge(metrics), name)


def _report(rows: Sequences) -> Metrics:
    return group_report(score_S=rows["score"], scored_S=rows["scored"], group_S=rows["group"])


def _loud(rows: Sequences, objective: Objective) -> Sequences:
    """The weighed rows without those that add nothing. One stays where all do: a step without a
    gradient is still a step, the optimizer's moments move."""
    silent_S = objective.silent(rows)
    if bool(silent_S.all()) and len(rows):
        cost_S = torch.where(rows["trained"] > 0, rows.lengths, torch.iinfo(torch.int64).max)
        silent_S = torch.arange(len(rows)) != cost_S.argmin()
    return rows.select(~silent_S) if bool(silent_S.any()) else rows


def _renamed(metrics: Metrics, role: str) -> dict[str, Measure]:
    """Under the role's own name, so that they are not merged with the policy's."""
    return {
        f"{role}/{name.removeprefix('train/').removeprefix(f'{role}/')}": measure
        for name, measure in metrics.items()
    }


def cut(rows: Sequences, parts: int) -> list[Sequences]:
    """The rows of each optimizer step: whole groups in order, sizes differing by at most one group,
    none without one."""
    groups = torch.unique_consecutive(rows["group"])
    chunks = torch.tensor_split(groups, max(1, min(parts, len(groups))))
    return [rows.select(torch.isin(rows["group"], chunk)) for chunk in chunks]
