"""A model that is asked and never learns: a teacher, or a reference of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import torch
from torch import Tensor

from hexpo.adapters.models.families import runs_packed
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.backend import Part
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.rank import Model
from hexpo.adapters.training.wire import by_row, part_of, split_rows
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Metrics, total


class FrozenScorer:
    """Implements the Scorer port: log-probs of the sampled ids, in one column.

    It holds the working weights alone: no masters, no gradients, no optimizer.
    """

    def __init__(
        self, policy: Policy, config: Config, *, column: str, store: RowStore, temperature: float
    ) -> None:
        policy.module.requires_grad_(requires_grad=False)
        policy.module.eval()  # type: ignore[no-untyped-call]
        self._model = Model(policy, config, temperature=temperature)
        self._packs = runs_packed(policy)
        self._budget, self._column, self._store = config.micro_tokens, column, store

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write the column for the rows. Raises Unsupported: another one is asked for."""
        if set(columns) - {self._column}:
            raise Unsupported(
                f"this model makes the column {self._column!r}, not {sorted(columns)}"
            )
        pieces: list[Tensor] = [torch.zeros(0)] * len(rows)
        for places in split_rows(rows, budget=self._budget, share_prompts=self._packs):
            chosen = rows.select(places)
            part = part_of(self._store, chosen, {"action"})
            found = await asyncio.to_thread(self._logprobs, part)
            for place, piece in zip(places, by_row({"old": found}, chosen), strict=True):
                pieces[place] = piece["old"]
        self._store.extend(rows.ids, {self._column: torch.cat([torch.zeros(0), *pieces])})
        return {"score/tokens": total(float(rows.lengths.sum()))}

    def _logprobs(self, part: Part) -> Tensor:
        with torch.no_grad():
            return self._model.score(part, {"old"})["old"]
