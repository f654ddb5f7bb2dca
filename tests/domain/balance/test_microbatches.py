"""Token-budget micro-batches: every row once, in an order that can be undone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.balance import microbatches, needed, reorder
from hexpo.domain.errors import WrongColumn, WrongValue

length_lists = st.lists(st.integers(0, 12), max_size=12)


@given(lengths=length_lists, budget=st.integers(1, 14), more=st.integers(0, 2))
def test_no_micro_batch_exceeds_the_budget_unless_one_row_does(
    lengths: list[int], budget: int, more: int
) -> None:
    """D2, O4."""
    length_S = torch.tensor(lengths, dtype=torch.int64)
    count = needed(length_S, budget=budget) + more
    index = microbatches(length_S, budget=budget, count=count)
    assert len(index) == count
    assert sorted(torch.cat([*index, torch.zeros(0).long()]).tolist()) == list(range(len(lengths)))
    assert all(int(length_S[part].sum()) <= budget or len(part) == 1 for part in index)


@given(lengths=length_lists, budget=st.integers(12, 20))
def test_micro_batches_are_at_least_half_full_on_the_whole(lengths: list[int], budget: int) -> None:
    """Speed: no two micro-batches would fit in one, so few are nearly empty."""
    sums = [
        int(torch.tensor(lengths)[part].sum())
        for part in microbatches(torch.tensor(lengths, dtype=torch.int64), budget=budget)
    ]
    assert all(a + b > budget for i, a in enumerate(sums) for b in sums[:i])


def test_results_come_back_in_the_rows_own_order() -> None:
    """O23.1: lengths 7, 1, 5, 3, each filled with its index + 1, budget 8."""
    length_S = torch.tensor([7, 1, 5, 3])
    index = microbatches(length_S, budget=8)
    assert len(index) == 2
    scores = [(part + 1) * length_S[part] for part in index]
    assert reorder(index, scores).tolist() == [7, 2, 15, 12]


@given(lengths=length_lists.filter(len), budget=st.integers(1, 14))
def test_reordering_undoes_any_packing(lengths: list[int], budget: int) -> None:
    """O23.1, O23.4."""
    length_S = torch.tensor(lengths)
    own = torch.arange(len(lengths)) * 10
    index = microbatches(length_S, budget=budget, count=needed(length_S, budget=budget) + 1)
    assert reorder(index, [own[part] for part in index]).tolist() == own.tolist()


def test_ranks_run_the_same_number_and_empty_ones_are_legal() -> None:
    """O23.2, O4: 8, 8, 8 against 2, 2 with budget 8."""
    long, short = torch.tensor([8, 8, 8]), torch.tensor([2, 2])
    count = max(needed(long, budget=8), needed(short, budget=8))
    assert count == 3
    assert [len(part) for part in microbatches(long, budget=8, count=count)] == [1, 1, 1]
    assert [len(part) for part in microbatches(short, budget=8, count=count)] == [2, 0, 0]
    assert [len(p) for p in microbatches(torch.zeros(0).long(), budget=8, count=2)] == [0, 0]
    assert microbatches(torch.zeros(0).long(), budget=8) == []


def test_a_pair_is_never_separated() -> None:
    """X7: also where the pair alone exceeds the budget."""
    length_S, pair_S = torch.tensor([5, 1, 5, 2, 9]), torch.tensor([3, 8, 3, 8, 1])
    index = microbatches(length_S, budget=8, unit_S=pair_S)
    assert sorted(part.tolist() for part in index) == [[0, 2], [1, 3], [4]]


def test_senseless_requests_are_refused() -> None:
    """M4."""
    with pytest.raises(WrongValue, match="budget of 0"):
        microbatches(torch.tensor([1]), budget=0)
    with pytest.raises(WrongValue, match=r"need 2 micro-batches of 8 tokens, 1 were asked for"):
        microbatches(torch.tensor([8, 8]), budget=8, count=1)
    with pytest.raises(WrongColumn, match=r"must both be \(S,\)"):
        microbatches(torch.tensor([1]), budget=8, unit_S=torch.tensor([1, 2]))
    with pytest.raises(WrongColumn, match=r"parts have \[1\] rows"):
        reorder([torch.tensor([0])], [torch.tensor([1, 2])])
