"""Held-out rows under the present weights, and the reference point of KTO: scored, not learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from hexpo.application.learning import cut
from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch
from hexpo.domain.batch.examples import Example, Unit, lay_out, mismatched
from hexpo.domain.metrics import Metrics, mean_of, total
from hexpo.domain.objective import Objective
from hexpo.domain.preference.kto import reference_point
from hexpo.domain.ragged import row_sums

PRESENT: Mapping[str, str] = {"policy": "old", "prediction": "value", "entropy": "entropy"}
"""Which scored column holds each statistic of the model's last step."""


@attrs.frozen(kw_only=True, eq=False)
class Scoring:
    """Asks scorers for columns of rows that belong to no optimizer step."""

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
    """KTO's z: how far the policy is from the reference on prompts with another one's answer.

    Each optimizer step has its own, of its rows alone. The log-probs are those from before the
    first one, as for every statistic of a step, so that no split changes it.
    """

    scoring: Scoring

    async def added(
        self, batch: Batch, units: Sequence[Unit], *, updates: int = 1
    ) -> tuple[Batch, Metrics]:
        """The batch with the column `reference_point`.

        Args: batch: `lay_out(units)`. updates: into how many optimizer steps `cut` cuts it.
        """
        rows = batch.sequences
        steps = cut(rows, updates)
        places = [torch.unique_consecutive(step["group"]).tolist() for step in steps]
        others = [mismatched([units[place][0] for place in these]) for these in places]
        points = [reference_point(gained_S) for gained_S in await self._gained(others)]
        column_S = torch.cat(
            [torch.full((len(step),), point) for step, point in zip(steps, points, strict=True)]
        )
        measured = mean_of(sum(points), len(points))
        held = rows.with_columns(reference_point=column_S)
        return Batch(held, batch.tokens), {"kto/reference_point": measured}

    async def _gained(self, parts: Sequence[Sequence[Example]]) -> Sequence[Tensor]:
        """(S,) nats for each part: sum(old - reference) of its examples' answers."""
        batch = lay_out([[one] for part in parts for one in part])
        gained_S = torch.zeros(0)
        if len(batch):
            found = await self.scoring.columns(batch, ["old", "reference", "action"])
            answers_T = found["action"]
            gained_T = (found["old"] - found["reference"])[answers_T]
            gained_S = row_sums(gained_T, batch.owner[answers_T], rows=len(batch))
        return torch.split(gained_S, [len(part) for part in parts])


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
