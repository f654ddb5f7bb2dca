"""A served model as a teacher."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from hexpo.adapters.rollout.vllm.scores import Scores
from hexpo.application.ports.store import RowStore
from hexpo.application.tasks import first_failure
from hexpo.domain.batch import Sequences
from hexpo.domain.distillation.coarse import valid_topk
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Metrics, total


class Scoring(Protocol):
    """What is asked of an engine: it may live in another process."""

    async def score(self, prompt_ids: Sequence[int], *, top_k: int) -> Scores: ...


class ServedScorer:
    """Implements the Scorer port by an engine that scores given ids: their log-probs in a column,
    and under its name with `_topk` and `_ids` the likeliest ids and their log-probs.

    They speak of the tokens that the policy sampled; elsewhere stand zeros. Rows are asked for side
    by side, so many at a time, and written together. A token whose kept ids are not all ids of the
    policy (a teacher's vocabulary may be padded further) has NaN, and is counted as unusable.
    """

    def __init__(
        self,
        engine: Scoring,
        *,
        store: RowStore,
        temperature: float = 1.0,
        column: str = "teacher",
        top_k: int = 0,
        at_once: int = 64,
        vocabulary: int | None = None,
    ) -> None:
        """Args: temperature: that of the log-probs. top_k: ids that a distribution is kept by.
            at_once: rows that the engine is given at a time. vocabulary: the policy's ids; None:
            the engine's are no more.

        Raises: Unsupported: a temperature other than 1, which the engine cannot score at.
        """
        if temperature != 1:
            raise Unsupported(
                f"vllm scores given ids at temperature 1, not {temperature:g}: set"
                " rollout.temperature to 1, or choose another backend for this model"
            )
        self._engine, self._store, self._width = engine, store, top_k
        self._at_once, self._vocabulary = at_once, vocabulary
        self._made = {column: "logprobs", f"{column}_topk": "topk", f"{column}_ids": "ids"}

    @property
    def width(self) -> int:
        """Ids that a distribution is kept by."""
        return self._width

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write the columns for the rows; `score/unusable` counts sampled tokens without a number
        that is a log-prob. Raises Unsupported: another column is asked for."""
        if unknown := sorted(set(columns) - self._made.keys()):
            raise Unsupported(f"this model makes {', '.join(self._made)}, not {unknown}")
        found = self._store.get(rows.ids, ["token", "action"])
        pieces = found["token"].split(rows.lengths.tolist())
        wide = any(self._made[name] != "logprobs" for name in columns)
        scores = await self._scores(pieces, top_k=self._width if wide else 0)
        made = _joined(scores, found["action"], vocabulary=self._vocabulary)
        self._store.extend(rows.ids, {name: made[self._made[name]] for name in columns})
        unusable_T = found["action"] & ~_usable(made, wide=wide)
        return {
            "score/tokens": total(float(rows.lengths.sum())),
            "score/unusable": total(float(unusable_T.sum())),
        }

    async def _scores(self, pieces: Sequence[Tensor], *, top_k: int) -> list[Scores]:
        room = asyncio.Semaphore(self._at_once)

        async def of(piece: Tensor) -> Scores:
            async with room:
                return await self._engine.score(piece.tolist(), top_k=top_k)

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(of(piece)) for piece in pieces]
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        return [task.result() for task in asked]


def _joined(
    scores: Sequence[Scores], action_T: Tensor, *, vocabulary: int | None
) -> Mapping[str, Tensor]:
    """Rows end to end; zeros where the policy did not sample."""
    if not scores:
        return dict.fromkeys(("logprobs", "topk", "ids"), torch.zeros(0))
    logprobs_T = torch.cat([one.logprobs for one in scores])
    topk_TK = torch.cat([one.top_logprobs for one in scores])
    ids_TK = torch.cat([one.top_ids for one in scores])
    if vocabulary is not None:
        foreign_T = (ids_TK >= vocabulary).any(-1, keepdim=True)
        topk_TK = topk_TK.masked_fill(foreign_T, torch.nan)
        ids_TK = ids_TK.masked_fill(foreign_T, 0)
    return {
        "logprobs": logprobs_T.masked_fill(~action_T, 0),
        "topk": topk_TK.masked_fill(~action_T[:, None], 0),
        "ids": ids_TK.masked_fill(~action_T[:, None], 0),
    }


def _usable(made: Mapping[str, Tensor], *, wide: bool) -> Tensor:
    usable_T = made["logprobs"].isfinite()
    return usable_T & valid_topk(made["topk"]) if wide else usable_T
