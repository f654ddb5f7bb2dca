"""Which tokens of some rows have to be run, in which order, and where each prediction comes from.

This is the one place of the label shift: what is said of token i comes from the hidden state of
token i - 1 of the same row.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.attention import Segment


@attrs.frozen(kw_only=True, eq=False)
class Rows:
    """Rows to run, end to end, and the tokens of interest."""

    tokens_T: Tensor
    """int64 ids."""
    positions_T: Tensor
    """int64 positions of each token in its row."""
    lengths_S: Tensor
    """int64 tokens of each row."""
    prompt_lengths_S: Tensor
    """int64 tokens that rows of a group are likely to have in common."""
    groups_S: Tensor
    """int64 group of each row."""
    selected_T: Tensor
    """bool tokens whose log-prob is wanted; never a row's first one."""

    @property
    def labels(self) -> Tensor:
        """(M,) ids of the selected tokens, in order."""
        return self.tokens_T[self.selected_T]


@attrs.frozen(kw_only=True, eq=False)
class Layout:
    """Run tokens without padding, in segments."""

    tokens_N: Tensor
    positions_N: Tensor
    segments: tuple[Segment, ...]
    source_M: Tensor
    """For each selected token, in order, the place of the hidden state that predicts it."""
    chosen_N: Tensor
    """Which of the rows' tokens each run one is."""
    before_T: Tensor
    """For each of the rows' tokens the place of the hidden state that predicts it; means something
    up to a row's last selected token, and not for its first one."""


@attrs.frozen(kw_only=True, eq=False)
class Ran:
    """Rows after the decoder; hidden states are normalised."""

    layout: Layout
    hidden_MH: Tensor
    """Of each selected token the one that predicts it."""
    hidden_NH: Tensor
    """Of each run token."""


def needed(rows: Rows) -> Tensor:
    """(S,) how many first tokens of each row have to be run: all before its last selected one."""
    owner = torch.repeat_interleave(rows.lengths_S)
    starts = rows.lengths_S.cumsum(0) - rows.lengths_S
    within = torch.arange(len(owner)) - starts[owner]
    last = torch.where(rows.selected_T, within, 0)
    return torch.zeros_like(rows.lengths_S).scatter_reduce(0, owner, last, "amax")


def lay_out(rows: Rows, *, share: bool = True) -> Layout:
    """Place rows: prompts that rows of a group have in common once, answers after them; other rows
    by length, so that little is padded inside attention.

    Args: share: run common prompts once.
    """
    needs = needed(rows).tolist()
    lengths = rows.lengths_S.tolist()
    starts = (rows.lengths_S.cumsum(0) - rows.lengths_S).tolist()
    order: list[Tensor] = []
    segments: list[Segment] = []
    first_place = torch.zeros(len(lengths), dtype=torch.int64)
    prefix_place = torch.zeros_like(first_place)
    shared_S = torch.zeros_like(first_place)
    run = 0
    for members, shared in _families(rows, starts, needs, share=share):
        for row in members:
            prefix_place[row], shared_S[row] = run, shared
        order.append(torch.arange(starts[members[0]], starts[members[0]] + shared))
        place = run + shared
        for row in members:
            first_place[row] = place
            order.append(torch.arange(starts[row] + shared, starts[row] + max(shared, needs[row])))
            place += max(0, needs[row] - shared)
        segments.append(Segment.of(shared, [max(0, needs[row] - shared) for row in members]))
        run = place
    chosen = torch.cat(order) if order else torch.zeros(0, dtype=torch.int64)
    before_T = _before(rows, first_place, prefix_place, shared_S)
    return Layout(
        tokens_N=rows.tokens_T[chosen],
        positions_N=rows.positions_T[chosen],
        segments=tuple(segments),
        source_M=before_T[rows.selected_T],
        chosen_N=chosen,
        before_T=before_T,
    )


def _before(rows: Rows, first_place: Tensor, prefix_place: Tensor, shared_S: Tensor) -> Tensor:
    owner = torch.repeat_interleave(rows.lengths_S)
    starts = rows.lengths_S.cumsum(0) - rows.lengths_S
    before = torch.arange(len(owner)) - starts[owner] - 1
    in_prefix = before < shared_S[owner]
    return torch.where(
        in_prefix, prefix_place[owner] + before, first_place[owner] + before - shared_S[owner]
    )


def _families(
    rows: Rows, starts: list[int], needs: list[int], *, share: bool
) -> list[tuple[list[int], int]]:
    """Rows that run as one segment, and the length of their common prefix."""
    by_group: dict[tuple[int, int, int], list[int]] = {}
    for row, (group, prompt) in enumerate(
        zip(rows.groups_S.tolist(), rows.prompt_lengths_S.tolist(), strict=True)
    ):
        if needs[row]:
            key = (group, prompt, 0) if share and 0 < prompt <= needs[row] else (group, 0, row)
            by_group.setdefault(key, []).append(row)
    families: list[tuple[list[int], int]] = []
    alone: list[int] = []
    for (_, prompt, _), members in by_group.items():
        if len(members) > 1 and _agree(rows, starts, members, prompt):
            families.append((members, prompt))
        else:
            alone.extend(members)
    return families + [(bucket, 0) for bucket in _buckets(alone, needs)]


def _agree(rows: Rows, starts: list[int], members: list[int], prompt: int) -> bool:
    first = slice(starts[members[0]], starts[members[0]] + prompt)
    return all(
        torch.equal(column[first], column[starts[row] : starts[row] + prompt])
        for column in (rows.tokens_T, rows.positions_T)
        for row in members[1:]
    )


def _buckets(alone: list[int], needs: list[int]) -> list[list[int]]:
    """Rows of similar length together: at most a quarter of a table is padding."""
    buckets: list[list[int]] = []
    for row in sorted(alone, key=lambda row: (-needs[row], row)):
        if buckets and needs[row] * 4 >= needs[buckets[-1][0]] * 3:
            buckets[-1].append(row)
        else:
            buckets.append([row])
    return buckets
