"""One batch becomes the next policy version: columns, advantages, optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.timing import Stopwatch
from hexpo.domain.batch import Sequences
from hexpo.domain.batch.assemble import assemble
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics, merge
from hexpo.domain.objective import Objective
from hexpo.domain.trajectory import Group


@attrs.frozen(kw_only=True)
class LearningSettings:
    """How one batch is used."""

    updates: int = 1
    """Optimizer steps of one pass: the batch's groups are cut into so many parts."""
    passes: int = 1
    """How often the batch is gone through."""
    mask_cut: bool = False
    """Answers that the token budget cut train nothing."""


@attrs.frozen(kw_only=True, eq=False)
class Learnt:
    """What became of a batch."""

    version: int
    metrics: Metrics


class Learner:
    """Turns groups into a published version, through the row store and the engine."""

    def __init__(
        self,
        settings: LearningSettings,
        *,
        engine: TrainingEngine,
        store: RowStore,
        objective: Objective,
        estimator: Estimator,
        scorers: Mapping[str, Scorer],
    ) -> None:
        """Args: scorers: who provides each stored column (`old`, `reference`, `value`, ...) that
        the objective or the estimator needs."""
        self.engine = engine
        self._settings, self._store = settings, store
        self._objective, self._estimator, self._scorers = objective, estimator, scorers

    async def learn(self, groups: Sequence[Group], watch: Stopwatch) -> Learnt:
        """Train on the groups and publish.

        Raises: NonFinite: the engine skipped too many optimizer steps in a row.
        """
        batch, metrics = assemble(groups, mask_cut=self._settings.mask_cut)
        rows, parts = batch.sequences, [metrics]
        self._store.put(batch)
        try:
            with watch("score"):
                parts += await self._score(rows)
            rows, estimated = await self._estimate(rows)
            parts.append(estimated)
            with watch("train"):
                for _ in range(self._settings.passes):
                    for part in _cut(rows, self._settings.updates):
                        parts.append(await self._update(part))
        finally:
            self._store.drop(rows.ids)
        return Learnt(version=await self.engine.publish(), metrics=merge(parts))

    async def _score(self, rows: Sequences) -> list[Metrics]:
        wanted = self._objective.token_columns | set(self._estimator.needs.tokens)
        by_scorer: dict[Scorer, set[str]] = {}
        for column, scorer in self._scorers.items():
            if column in wanted:
                by_scorer.setdefault(scorer, set()).add(column)
        return [await scorer.score(rows, columns) for scorer, columns in by_scorer.items()]

    async def _estimate(self, rows: Sequences) -> tuple[Sequences, Metrics]:
        if self._estimator.per_token:
            return rows, await self.engine.compute(rows, self._estimator)
        arguments = {f"{name}_S": rows[name] for name in self._estimator.needs.sequences}
        advantages_S = self._estimator.function(**arguments, **self._estimator.options)
        if not isinstance(advantages_S, torch.Tensor):
            advantages_S = advantages_S["advantage"]
        return rows.with_columns(advantage=advantages_S.float()), {}

    async def _update(self, part: Sequences) -> Metrics:
        weighed = self._objective.weigh(part)
        accumulated = await self.engine.accumulate(weighed, self._objective)
        result = await self.engine.step()
        return merge([accumulated, result.metrics])


def _cut(rows: Sequences, parts: int) -> list[Sequences]:
    """Parts of whole groups, sizes differing by at most one group, in order."""
    groups = torch.unique_consecutive(rows["group"])
    return [
        rows.select(torch.isin(rows["group"], chunk)) for chunk in torch.tensor_split(groups, parts)
    ]
