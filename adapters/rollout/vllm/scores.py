"""Prompt log-probs, for teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import EngineFailed


@attrs.frozen(kw_only=True, eq=False)
class Scores:
    """What a model says of ids that it is given. At i it speaks of choosing id i after those
    before it; nothing is before the first, which has 0 and ids of -1."""

    logprobs: Tensor
    """(L,) float32 of each id; temperature 1, no filters."""
    top_ids: Tensor
    """(L, K) int64, likeliest first."""
    top_logprobs: Tensor
    """(L, K) float32."""


def read_scores(
    ids: Sequence[int], found: Sequence[Mapping[int, Any] | None] | None, *, top_k: int
) -> Scores:
    """From vLLM's prompt log-probs, an entry a position, the first None.

    Raises EngineFailed: a position lacks its own id or some of the top ones.
    """
    count = len(ids)
    logprobs_L = torch.zeros(count)
    top_ids_LK = torch.full((count, top_k), -1, dtype=torch.int64)
    top_logprobs_LK = torch.zeros(count, top_k)
    if found is None or len(found) != count:
        raise EngineFailed(
            f"vLLM scored {0 if found is None else len(found)} positions of {count} ids"
        )
    for place in range(1, count):
        entries = found[place] or {}
        ranked = sorted(entries.items(), key=lambda item: item[1].rank)[:top_k]
        if ids[place] not in entries or len(ranked) < top_k:
            raise EngineFailed(
                f"vLLM gave {len(entries)} log-probs at position {place}; wanted are those of id"
                f" {ids[place]} and of the {top_k} likeliest"
            )
        logprobs_L[place] = entries[ids[place]].logprob
        for rank, (token, entry) in enumerate(ranked):
            top_ids_LK[place, rank], top_logprobs_LK[place, rank] = token, entry.logprob
    return Scores(logprobs=logprobs_L, top_ids=top_ids_LK, top_logprobs=top_logprobs_LK)
