"""Rows over ranks: balanced, whole groups where asked, few bytes, empty ranks."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.training.host.order import laid_out, opened, shared, together
from hexpo.domain.batch import Sequences


def rows_of(lengths: list[int], groups: list[int] | None = None) -> Sequences:
    return Sequences.of(
        {
            "id": torch.arange(len(lengths)) + 50,
            "group": torch.tensor(groups if groups is not None else [0] * len(lengths)).long(),
            "length": torch.tensor(lengths).long(),
            "advantage": torch.arange(len(lengths)).float(),
        }
    )


def test_nine_rows_over_four_ranks_and_two_over_four() -> None:
    """O23.3: sizes 3, 2, 2, 2; ranks without a row are ordinary."""
    sizes = [len(opened(shared(rows_of([5] * 9), 4, (), None)).of(rank)) for rank in range(4)]
    assert sorted(sizes) == [2, 2, 2, 3]
    order = opened(shared(rows_of([5, 5]), 4, (), None))
    assert sorted(len(order.of(rank)) for rank in range(4)) == [0, 0, 1, 1]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    ranks=st.integers(1, 7),
    data=st.data(),
)
def test_every_row_goes_to_one_rank_and_groups_stay_together(
    lengths: list[int], ranks: int, data: st.DataObject
) -> None:
    """A6, O23.4: columns move with their row."""
    size = len(lengths)
    groups = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    rows = rows_of(lengths, groups)
    order = opened(shared(rows, ranks, {"advantage"}, "what", keep_groups=True))
    assert order.what == "what"
    found: dict[int, set[int]] = {}
    seen: list[int] = []
    for rank in range(ranks):
        own = order.of(rank)
        for place, row in enumerate(own.ids.tolist()):
            assert own["advantage"][place] == row - 50
            assert own.lengths[place] == lengths[row - 50]
            found.setdefault(groups[row - 50], set()).add(rank)
            seen.append(row)
    assert sorted(seen) == rows.ids.tolist()
    assert all(len(at) == 1 for at in found.values())


def test_only_the_columns_that_are_read_travel() -> None:
    """X4: the driver's table stays with the driver."""
    rows = rows_of([3, 4])
    assert "advantage" not in opened(laid_out(rows, [1, 1], (), None)).rows
    assert "advantage" in opened(laid_out(rows, [1, 1], {"advantage"}, None)).rows
    assert opened(together(rows, 3, (), None)).of(0).ids.tolist() == [50, 51]
    assert len(opened(together(rows, 3, (), None)).of(2)) == 0
