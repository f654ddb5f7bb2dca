"""Rows over ranks, so that all ranks work equally long."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import WrongColumn, WrongValue

_GOOD_ENOUGH = 4e-4
"""Relative distance of the heaviest part from the mean at which no exchange is tried any more."""
_CLOSE = 0.05
"""A swap that misses what is wanted by this share is taken without looking further."""
_EXCHANGES_A_PART = 12
_FOLD = 8
"""Rounds that are dealt as one, an even number."""


@attrs.define(eq=False)
class _Part:
    place: int
    load: float
    items: list[int]
    """Ranks of its rows, ascending: 0 is the costliest of all."""


_load = attrgetter("load")


def partition(
    cost_S: Tensor, parts: int, *, equal_counts: bool = False, unit_S: Tensor | None = None
) -> list[Tensor]:
    """Places of the rows of each part, ascending; the heaviest part is as light as we can make it.

    Heaviest first, each to the lightest part (with equal counts: in rounds of one row a part),
    then exchanges between heavy and light parts. Parts may be empty.

    Args: cost_S: (S,) what each row costs, not negative.
        equal_counts: numbers of rows (of units, with `unit_S`) differ by at most one.
        unit_S: (S,) int64; rows of equal value stay in one part (a group, a pair).
    Returns: `parts` int64 tensors; together each place once.
    Raises: WrongValue: no part is asked for, or a cost is negative or not a number.
        WrongColumn: axes differ.
    """
    if parts < 1:
        raise WrongValue(f"cannot share rows among {parts} parts; ask for at least one")
    if cost_S.dim() != 1 or (unit_S is not None and unit_S.shape != cost_S.shape):
        other = None if unit_S is None else tuple(unit_S.shape)
        raise WrongColumn(f"cost {tuple(cost_S.shape)} and unit {other} must both be (S,)")
    cost = cost_S.double()
    if not bool((cost >= 0).all()) or not bool(cost.isfinite().all()):
        raise WrongValue("costs must be finite and not negative")
    if unit_S is None:
        return _listed(_shared(cost, parts, equal_counts=equal_counts), parts)
    _, unit = torch.unique(unit_S, return_inverse=True)
    whole = cost.new_zeros(int(unit.max()) + 1 if unit.numel() else 0).index_add(0, unit, cost)
    return _listed(_shared(whole, parts, equal_counts=equal_counts)[unit], parts)


def _listed(part_S: Tensor, parts: int) -> list[Tensor]:
    counts = torch.bincount(part_S, minlength=parts).tolist()
    return list(torch.split(torch.argsort(part_S, stable=True), counts))


def imbalance(cost_S: Tensor, index: Sequence[Tensor]) -> float:
    """The heaviest part over the mean part, minus one; 0 where nothing costs anything."""
    loads = torch.stack([cost_S.double()[part].sum() for part in index])
    mean = float(loads.mean())
    return float(loads.max()) / mean - 1 if mean else 0.0


def _shared(cost: Tensor, parts: int, *, equal_counts: bool) -> Tensor:
    """(S,) int64 part of each row."""
    falling, order = torch.sort(cost, descending=True, stable=True)
    dealt = (_dealt_in_rounds if equal_counts else _dealt_to_lightest)(falling, parts)
    part_S = torch.empty_like(order)
    part_S[order] = _exchanged(dealt, falling, parts)
    return part_S


def _dealt_to_lightest(falling: Tensor, parts: int) -> Tensor:
    """(S,) int64 part of each rank."""
    heap = [(0.0, part) for part in range(parts)]
    dealt = []
    for cost in falling.tolist():
        load, lightest = heap[0]
        dealt.append(lightest)
        heapq.heapreplace(heap, (load + cost, lightest))
    return torch.tensor(dealt, dtype=torch.int64)


def _dealt_in_rounds(falling: Tensor, parts: int) -> Tensor:
    """(S,) int64 part of each rank.

    The costliest rounds go one by one. Rounds of cheaper rows are alike, and go several at once:
    folded, the costliest row of one above the cheapest of the next, they are columns of nearly one
    sum, and a column is dealt as one row. Exchanges undo what that costs in balance.
    """
    rounds = len(falling) // parts
    folds = max(rounds // _FOLD - 1, 0)
    costly, cheap = (rounds - folds * _FOLD) * parts, rounds * parts
    loads = [0.0] * parts
    first_RP = _dealt(falling[:costly].view(-1, parts), loads)
    folded_FKP = falling[costly:cheap].reshape(folds, _FOLD, parts).clone()
    folded_FKP[:, 1::2] = folded_FKP[:, 1::2].flip(2)
    sum_FP, column_FP = folded_FKP.sum(1).sort(1, descending=True)
    part_FP = torch.empty_like(column_FP).scatter_(1, column_FP, _dealt(sum_FP, loads))
    part_FKP = torch.stack([part_FP, part_FP.flip(1)], 1).repeat(1, _FOLD // 2, 1)
    last_P = _dealt(falling[None, cheap:], loads)
    return torch.cat([first_RP.view(-1), part_FKP.view(-1), last_P.view(-1)])


def _dealt(cost_RP: Tensor, loads: list[float]) -> Tensor:
    """(R, P) int64 part of each cost, in rounds of falling costs; the loads grow."""
    lightest_first = list(range(len(loads)))
    dealt = []
    for costs in cost_RP.tolist():
        lightest_first.sort(key=loads.__getitem__)
        # A short round leaves the heaviest parts out.
        for part, cost in zip(lightest_first, costs, strict=False):
            loads[part] += cost
        dealt.append(lightest_first[: len(costs)])
    return torch.tensor(dealt, dtype=torch.int64).view(cost_RP.shape)


def _exchanged(part_S: Tensor, falling: Tensor, parts: int) -> Tensor:
    """(S,) int64 part of each rank, after exchanges between parts."""
    counts = torch.bincount(part_S, minlength=parts).tolist()
    loads = torch.bincount(part_S, weights=falling, minlength=parts).tolist()
    ranks = iter(torch.argsort(part_S, stable=True).tolist())
    shared = [
        _Part(part, load, list(islice(ranks, count)))
        for part, (load, count) in enumerate(zip(loads, counts, strict=True))
    ]
    if moved := _exchange(shared, (-falling).tolist()):
        part_S[list(moved)] = torch.tensor(list(moved.values()))
    return part_S


def _exchange(shared: list[_Part], rising: list[float]) -> dict[int, int]:
    """Swap rows of the heaviest part for rows of lighter ones until it is close to the mean.

    Returns: the new part of each rank that moved.
    """
    mean = sum(part.load for part in shared) / len(shared)
    moved: dict[int, int] = {}
    for _ in range(_EXCHANGES_A_PART * len(shared)):
        heavy, light = max(shared, key=_load), min(shared, key=_load)
        if heavy.load <= mean * (1 + _GOOD_ENOUGH):
            break
        if _swap(heavy, light, heavy.load - mean, rising, moved):
            continue
        others = sorted(shared, key=_load)[1:-1]
        if not any(_swap(heavy, other, heavy.load - mean, rising, moved) for other in others):
            break
    return moved


def _swap(
    heavy: _Part, light: _Part, excess: float, rising: list[float], moved: dict[int, int]
) -> bool:
    """Swap one row of each part, so that the heavy part loses about what it should; False where no
    swap helps. It should lose half of the parts' difference, but no more than its excess over the
    mean of all parts."""
    wanted = min((heavy.load - light.load) / 2, excess)
    theirs = light.items
    best, pair = 0.999 * wanted, None
    for rank in heavy.items:
        # Of all rows, the costliest that is cheap enough; then, of theirs, those beside it.
        at = bisect_left(theirs, bisect_left(rising, rising[rank] + wanted))
        for other in theirs[max(at - 1, 0) : at + 1]:
            distance = abs(rising[other] - rising[rank] - wanted)
            if distance < best:
                best, pair = distance, (rank, other)
        if best < _CLOSE * wanted:
            break
    if pair is None:
        return False
    given, taken = pair
    heavy.items.remove(given)
    light.items.remove(taken)
    insort(heavy.items, taken)
    insort(light.items, given)
    moved[given], moved[taken] = light.place, heavy.place
    difference = rising[taken] - rising[given]
    heavy.load -= difference
    light.load += difference
    return True
