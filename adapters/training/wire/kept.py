"""Columns of a distribution: the likeliest ids of a token, and the log-probs that it gives them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

TOPK, IDS = "topk", "ids"
"""What a model is asked for; in the row store they begin with whose distribution it is."""


def kept_columns(column: str) -> Mapping[str, str]:
    """The columns of a model that is drawn to, and what it is asked for to fill them."""
    return {column: "old", f"{column}_{TOPK}": TOPK, f"{column}_{IDS}": IDS}


def blank(names: Collection[str], tokens: int, *, width: int) -> dict[str, Tensor]:
    """(T,) or (T, width) zeros: what stands at tokens that nobody asks about."""
    kinds = {TOPK: torch.zeros(tokens, width), IDS: torch.zeros(tokens, width, dtype=torch.int64)}
    return {name: kinds.get(name, torch.zeros(tokens)) for name in names}


def joined(pieces: Sequence[Mapping[str, Tensor]], names: Collection[str]) -> dict[str, Tensor]:
    """(T, ...) columns of rows, end to end; (0,) where there is no row."""
    if not pieces:
        return {name: torch.zeros(0) for name in names}
    return {name: torch.cat([piece[name] for piece in pieces]) for name in names}
