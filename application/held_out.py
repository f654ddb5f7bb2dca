"""Held-out rows under the present weights, and the reference point of KTO: scored, not learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch
from hexpo.domain.batch.examples import Unit, lay_out, mismatched
from hexpo.domain.metrics import Metrics, latest, total
from hexpo.domain.objective import Objective
from hexpo.domain.preference.kto import reference_point
from hexpo.domain.ragged import row_sums

PRESENT: Mapping[str, str] = {"policy": "old", "prediction": "value", "entropy": "entropy"}
"""Which scored column holds each statistic of the model's last step."""


@attrs.frozen(kw_only=True, eq=False)
class Scoring:
    """Asks scorers for columns of rows that are nobody's step."""

    store: RowStore
    scorers: Mapping[str, Scorer]
    """Who provides each column."""

    async def columns(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """(T,) columns of a batch by name, scored where they were not given."""
        ids = batch.sequences.ids
        self.store.put(batch)
        try:
            for name in names:
                if name in self.scorers:
                    await self.scorers[name].score(batch.sequences, {name})
            found = self.store.get(ids, names)
            return {str(name): found[name] for name in found.keys()}
        finally:
            self.store.drop(ids)


@attrs.frozen(kw_only=True, eq=False)
class ReferencePoint:
    """KTO's z: how far the policy is from the reference on prompts with another one's answer."""

    scoring: Scoring

    async def added(self, batch: Batch, units: Sequence[Unit]) -> tuple[Batch, Metrics]:
        """The batch with the column `reference_point`, of all its rows."""
        others = mismatched([unit[0] for unit in units])
        point = await self._point(lay_out([[one] for one in others])) if others else 0.0
        rows = batch.sequences
        held = rows.with_columns(reference_point=torch.full((len(rows),), point))
        return Batch(held, batch.tokens), {"kto/reference_point": latest(point)}

    async def _point(self, batch: Batch) -> float:
        found = await self.scoring.columns(batch, ["old", "reference", "action"])
        answers_T = found["action"]
        gained_T = (found["old"] - found["reference"])[answers_T]
        owner_T = batch.owner[answers_T]
        return reference_point(row_sums(gained_T, owner_T, rows=len(batch)))


@attrs.frozen(kw_only=True, eq=False)
class HeldOut:
    """Measures an objective on rows that are never learnt from."""

    units: Sequence[Unit]
    objective: Objective
    scoring: Scoring
    reference_point: ReferencePoint | None = None
    name: str = "held-out"

    async def measure(self) -> Metrics:
        """The loss under the present weights, and what the loss measures beside it."""
        batch = lay_out(self.units)
        if self.reference_point is not None:
            batch, _ = await self.reference_point.added(batch, self.units)
        statistics = {name: PRESENT[name] for name in self.objective.statistics}
        stored = self.objective.token_columns | {*statistics.values(), "trained"}
        found = await self.scoring.columns(batch, sorted(stored))
        trained_T = found["trained"]
        columns = {name: column[trained_T] for name, column in found.items()}
        columns |= {name: columns[scored] for name, scored in statistics.items()}
        columns["owner"] = batch.owner[trained_T]
        _, metrics = self.objective.evaluate(columns, self.objective.weigh(batch.sequences))
        tokens = float(batch.sequences["trained"].sum())
        return {**metrics, "rows": total(len(self.units)), "tokens": total(tokens)}
