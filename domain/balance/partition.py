"""Rows over ranks, so that all ranks work equally long."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, itemgetter

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import WrongColumn, WrongValue

_GOOD_ENOUGH = 1e-3
"""Relative distance of the heaviest part from the mean at which no exchange is tried any more."""
_CLOSE = 0.05
"""A swap that misses what is wanted by this share is taken without looking further."""
_EXCHANGES_A_PART = 12


@attrs.define(eq=False)
class _Part:
    load: float
    items: list[int]
    """Ranks of its rows: 0 is the costliest of all."""


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
    ordered = falling.tolist()
    shared = (_dealt_in_rounds if equal_counts else _dealt_to_lightest)(ordered, parts)
    _exchange(shared, ordered)
    part_S = torch.empty_like(order)
    if ordered:
        ranks = array("q", chain.from_iterable(part.items for part in shared))
        counts = torch.tensor([len(part.items) for part in shared])
        rows = order[torch.frombuffer(ranks, dtype=torch.int64)]
        part_S[rows] = torch.repeat_interleave(counts)
    return part_S


def _dealt_to_lightest(ordered: list[float], parts: int) -> list[_Part]:
    heap = [(0.0, part) for part in range(parts)]
    items: list[list[int]] = [[] for _ in range(parts)]
    for rank, cost in enumerate(ordered):
        load, lightest = heap[0]
        items[lightest].append(rank)
        heapq.heapreplace(heap, (load + cost, lightest))
    return [_Part(load, items[part]) for load, part in sorted(heap, key=itemgetter(1))]


def _dealt_in_rounds(ordered: list[float], parts: int) -> list[_Part]:
    loads = [0.0] * parts
    items: list[list[int]] = [[] for _ in range(parts)]
    lightest_first = list(range(parts))
    for start in range(0, len(ordered), parts):
        lightest_first.sort(key=loads.__getitem__)
        # The last round may be short.
        for rank, (part, cost) in enumerate(
            zip(lightest_first, ordered[start : start + parts], strict=False), start
        ):
            loads[part] += cost
            items[part].append(rank)
    return [_Part(load, rows) for load, rows in zip(loads, items, strict=True)]


def _exchange(shared: list[_Part], cost: list[float]) -> None:
    """Swap rows of the heaviest part for rows of lighter ones until it is close to the mean."""
    mean = sum(part.load for part in shared) / len(shared)
    for _ in range(_EXCHANGES_A_PART * len(shared)):
        heavy, light = max(shared, key=_load), min(shared, key=_load)
        if heavy.load <= mean * (1 + _GOOD_ENOUGH):
            return
        if _swap(heavy, light, heavy.load - mean, cost):
            continue
        others = sorted(shared, key=_load)[1:-1]
        if not any(_swap(heavy, other, heavy.load - mean, cost) for other in others):
            return


def _swap(heavy: _Part, light: _Part, excess: float, cost: list[float]) -> bool:
    """Swap one row of each part, so that the heavy part loses about what it should; False where no
    swap helps. It should lose half of the parts' difference, but no more than its excess over the
    mean of all parts."""
    wanted = min((heavy.load - light.load) / 2, excess)
    theirs = sorted(light.items, reverse=True)
    offered = [cost[rank] for rank in theirs]  # rising
    best, pair = 0.999 * wanted, None
    for rank in heavy.items:
        at = bisect_left(offered, cost[rank] - wanted)
        for near in (at - 1, at):
            if 0 <= near < len(theirs):
                distance = abs(cost[rank] - offered[near] - wanted)
                if distance < best:
                    best, pair = distance, (rank, theirs[near])
        if best < _CLOSE * wanted:
            break
    if pair is None:
        return False
    given, taken = pair
    heavy.items.remove(given)
    light.items.remove(taken)
    heavy.items.append(taken)
    light.items.append(given)
    moved = cost[given] - cost[taken]
    heavy.load -= moved
    light.load += moved
    return True
