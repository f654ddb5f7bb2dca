"""Rows into micro-batches of a token budget; every rank can run the same number of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import torch
from torch import Tensor

from hexpo.domain.errors import WrongColumn, WrongValue


def microbatches(
    length_S: Tensor, *, budget: int, count: int | None = None, unit_S: Tensor | None = None
) -> list[Tensor]:
    """Places of the rows of each micro-batch, ascending.

    Longest first, each row into the fullest micro-batch that it still fits. A row (or unit) longer
    than the budget has a micro-batch of its own.

    Args: length_S: (S,) tokens.
        budget: tokens of a micro-batch.
        count: how many to give, empty ones at the end: the largest `needed` of all ranks, so that
            all run the same number of collectives; an empty one weighs nothing.
        unit_S: (S,) int64; rows of equal value stay together (a pair of a preference loss).
    Returns: int64 tensors; together each place once. No row, no `count`: no micro-batch.
    Raises: WrongValue: the budget is below 1, or `count` is less than needed.
        WrongColumn: the axes differ.
    """
    if budget < 1:
        raise WrongValue(f"a budget of {budget} tokens holds nothing; give at least 1")
    units = _units(length_S, unit_S)
    sizes = [sum(length for length, _ in unit) for unit in units]
    filled: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, micro-batch), ascending
    for unit in sorted(range(len(units)), key=lambda place: -sizes[place]):
        rows = [row for _, row in units[unit]]
        at = bisect_left(room, (sizes[unit], -1))
        if at < len(room):
            left, chosen = room.pop(at)
            filled[chosen] += rows
        else:
            left, chosen = budget, len(filled)
            filled.append(rows)
        insort(room, (left - sizes[unit], chosen))
    if count is not None and count < len(filled):
        raise WrongValue(
            f"{len(units)} rows or units need {len(filled)} micro-batches of {budget} tokens,"
            f" {count} were asked for; take the largest number that any rank needs"
        )
    filled += [[] for _ in range((count or 0) - len(filled))]
    return [torch.tensor(sorted(rows), dtype=torch.int64) for rows in filled]


def needed(length_S: Tensor, *, budget: int, unit_S: Tensor | None = None) -> int:
    """How many micro-batches these rows fill: ranks agree on the largest."""
    return len(microbatches(length_S, budget=budget, unit_S=unit_S))


def reorder(index: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Values of rows that were made part by part, (N, ...) each, back in the rows' own order.

    Args: index: places of each part's rows, as `microbatches` or `partition` gave them.
    Raises: WrongColumn: a part has not one value a row, or there is no part.
    """
    if not index or [len(part) for part in index] != [len(part) for part in values]:
        raise WrongColumn(
            f"parts have {[len(part) for part in index]} rows and {[len(v) for v in values]} values"
        )
    together = torch.cat(list(values))
    return together[torch.argsort(torch.cat(list(index)))]


def _units(length_S: Tensor, unit_S: Tensor | None) -> list[list[tuple[int, int]]]:
    """(length, place) of each unit's rows."""
    if length_S.dim() != 1 or (unit_S is not None and unit_S.shape != length_S.shape):
        raise WrongColumn("lengths and units must both be (S,)")
    rows = [(length, place) for place, length in enumerate(length_S.tolist())]
    if unit_S is None:
        return [[row] for row in rows]
    units: dict[int, list[tuple[int, int]]] = {}
    for row, unit in zip(rows, unit_S.tolist(), strict=True):
        units.setdefault(unit, []).append(row)
    return list(units.values())
