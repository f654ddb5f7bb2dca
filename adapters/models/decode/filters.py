"""Top-k, top-p and min-p as a floor on logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hexpo.domain.sampling import Sampling

CANDIDATES = 512
"""Likeliest ids that are looked at before a whole row is sorted."""


def floors_of(logits_NV: Tensor, settings: Sequence[Sampling]) -> Tensor:
    """The smallest logit that may be drawn, for each row; -inf where nothing is cut.

    Top-k, then top-p on what is left, then min-p. A floor keeps ids that are exactly as likely as
    the last one kept, so that the support follows from the values alone.

    Args: logits_NV: before the temperature. settings: one a row.
    Returns: (N,) fp32.
    """
    floors_N = torch.full((logits_NV.shape[0],), float("-inf"), device=logits_NV.device)
    for i, sampling in enumerate(settings):
        if sampling.filters and sampling.temperature > 0:
            floors_N[i] = _floor(logits_NV[i].float(), sampling)
    return floors_N


def _floor(logits_V: Tensor, sampling: Sampling) -> Tensor:
    top = logits_V.max()
    floor = torch.full_like(top, float("-inf"))
    if 0 < sampling.top_k < len(logits_V):
        floor = logits_V.topk(sampling.top_k).values[-1]
    if sampling.top_p < 1:
        kept_V = torch.where(logits_V >= floor, logits_V, float("-inf"))
        total = ((kept_V.double() - top) / sampling.temperature).exp().sum()
        for count in (min(CANDIDATES, len(kept_V)), len(kept_V)):
            likeliest = kept_V.topk(count).values
            mass = ((likeliest.double() - top) / sampling.temperature).exp().cumsum(0) / total
            enough = int(torch.searchsorted(mass, sampling.top_p))
            if enough < count:
                break
        floor = torch.maximum(floor, likeliest[min(enough, count - 1)])
    if sampling.min_p > 0:
        share = torch.tensor(sampling.min_p, dtype=torch.float64).log() * sampling.temperature
        floor = torch.maximum(floor, (top.double() + share).float())
    return floor
