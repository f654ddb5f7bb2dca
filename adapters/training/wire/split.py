"""How the rows of a step become micro-batches under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hexpo.domain.batch import Sequences


def split_rows(
    rows: Sequences, *, budget: int, share_prompts: bool, keep_groups: bool = False
) -> list[list[int]]:
    """Places of the rows of each micro-batch, a group's rows together where they fit.

    The number of micro-batches is about the least possible, and they are about equally large.

    Args: budget: tokens of a micro-batch; only a single longer row (or group, if kept) exceeds it.
        share_prompts: a group's prompt is run once, so it counts once.
        keep_groups: never separate a group (pair losses).
    """
    groups = _groups(rows)
    lengths = rows.lengths.tolist()
    prompts: list[int] = (
        rows["prompt_length"].tolist()
        if share_prompts and "prompt_length" in rows
        else [0] * len(rows)
    )

    def cost(members: list[int]) -> int:
        shared = prompts[members[0]]
        own: list[int] = [lengths[row] - min(shared, prompts[row]) for row in members]
        return shared + sum(own)

    total = sum(cost(members) for members in groups)
    even = total / max(1, -(-total // budget))
    target = min(budget, 1.15 * even)
    parts: list[list[int]] = []
    filled = 0.0
    for members in groups:
        pieces = [members]
        if cost(members) > budget and not keep_groups:
            pieces = _cut(members, cost, target)
        for piece in pieces:
            size = cost(piece)
            if not parts or filled + size > target:
                parts.append([])
                filled = 0
            parts[-1] += piece
            filled += size
    return parts


def by_row(columns: Mapping[str, Tensor], rows: Sequences) -> list[dict[str, Tensor]]:
    """Each row's own piece of (T,) columns."""
    sizes = rows.lengths.tolist()
    cut = {name: torch.split(column, sizes) for name, column in columns.items()}
    return [{name: pieces[place] for name, pieces in cut.items()} for place in range(len(rows))]


def _cut(members: list[int], cost: Callable[[list[int]], int], target: float) -> list[list[int]]:
    pieces: list[list[int]] = [[]]
    for row in members:
        if pieces[-1] and cost([*pieces[-1], row]) > target:
            pieces.append([])
        pieces[-1].append(row)
    return pieces


def _groups(rows: Sequences) -> list[list[int]]:
    if "group" not in rows:
        return [[row] for row in range(len(rows))]
    found: dict[int, list[int]] = {}
    for row, group in enumerate(rows["group"].tolist()):
        found.setdefault(group, []).append(row)
    return list(found.values())
