"""A model that is asked and never learns: a teacher, or a reference of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from hexpo.adapters.models.families import runs_packed
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.backend import Part
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.rank import Model
from hexpo.adapters.training.wire import by_row, joined, kept_columns, part_of, split_rows
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Sequences
from hexpo.domain.distillation.coarse import valid_topk
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Metrics, total


class FrozenScorer:
    """Implements the Scorer port: log-probs of the sampled ids in a column, and under this
    column's name with `_topk` and `_ids` the likeliest ids of each token and their log-probs.

    It holds the working weights alone: no masters, no gradients, no optimizer.
    """

    def __init__(
        self, policy: Policy, config: Config, *, column: str, store: RowStore, temperature: float
    ) -> None:
        policy.module.requires_grad_(requires_grad=False)
        policy.module.eval()  # type: ignore[no-untyped-call]
        self._model = Model(policy, config, temperature=temperature)
        self._packs = runs_packed(policy)
        self._budget, self._store = config.micro_tokens, store
        self._made = kept_columns(column)

    @property
    def width(self) -> int:
        """Ids that a distribution is kept by."""
        return self._model.width

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write the columns for the rows; `score/unusable` counts sampled tokens without a number
        that is a log-prob. Raises Unsupported: another column is asked for."""
        if set(columns) - self._made.keys():
            raise Unsupported(f"this model makes {', '.join(self._made)}, not {sorted(columns)}")
        asked = {self._made[name] for name in columns}
        pieces: list[dict[str, Tensor]] = [{}] * len(rows)
        unusable = 0
        for places in split_rows(rows, budget=self._budget, share_prompts=self._packs):
            part = part_of(self._store, rows.select(places), {"action"})
            found = await asyncio.to_thread(self._asked, part, asked)
            unusable += _unusable(found, part.columns["action"])
            for place, piece in zip(places, by_row(found, part.sequences), strict=True):
                pieces[place] = piece
        made = joined(pieces, asked)
        self._store.extend(rows.ids, {name: made[self._made[name]] for name in columns})
        return {
            "score/tokens": total(float(rows.lengths.sum())),
            "score/unusable": total(float(unusable)),
        }

    def _asked(self, part: Part, asked: Collection[str]) -> dict[str, Tensor]:
        with torch.no_grad():
            return self._model.score(part, asked)


def _unusable(found: Mapping[str, Tensor], action_T: Tensor) -> int:
    usable_T = torch.ones_like(action_T)
    if "old" in found:
        usable_T &= found["old"].isfinite()
    if "topk" in found:
        usable_T &= valid_topk(found["topk"])
    return int((action_T & ~usable_T).sum())
