"""Rows over ranks: even, whole, and with equal counts where asked."""

from __future__ import annotations

import importlib
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.balance import ModelShape, costs, imbalance, partition
from hexpo.domain.errors import WrongColumn, WrongValue

SHAPE = ModelShape(
    layers=28, hidden=3584, heads=28, head_size=128, key_value_heads=4, intermediate=18944
)
cost_lists = st.lists(st.floats(0, 1e9, allow_nan=False, width=32), max_size=12)


def log_normal_costs(rows: int, *, seed: int) -> Tensor:
    noise = torch.randn(rows, generator=torch.Generator().manual_seed(seed))
    return costs((7.3 + 0.6 * noise).exp().clamp(16, 28_672).long(), SHAPE)


@given(cost=cost_lists, parts=st.integers(1, 5), equal=st.booleans())
def test_every_row_is_in_one_part(cost: list[float], parts: int, equal: bool) -> None:
    """D2; O23.3: more parts than rows leave empty ones."""
    index = partition(torch.tensor(cost), parts, equal_counts=equal)
    assert len(index) == parts
    assert sorted(torch.cat(index).tolist()) == list(range(len(cost)))
    assert all(part.tolist() == sorted(part.tolist()) for part in index)
    if equal:
        sizes = [len(part) for part in index]
        assert max(sizes) - min(sizes) <= 1


@given(cost=st.lists(st.integers(0, 50), min_size=1, max_size=7), parts=st.integers(1, 3))
def test_no_part_is_much_heavier_than_the_best_partition_has(cost: list[int], parts: int) -> None:
    """Heaviest first is within 4/3 of the best (Graham 1969); the best is found by trying all."""
    cost_S = torch.tensor(cost, dtype=torch.float64)
    best = min(
        max(sum(c for c, p in zip(cost, owner, strict=True) if p == part) for part in range(parts))
        for owner in itertools.product(range(parts), repeat=len(cost))
    )
    heaviest = max(float(cost_S[part].sum()) for part in partition(cost_S, parts))
    assert heaviest <= best * 4 / 3 + 1e-9


@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99)), max_size=12),
    parts=st.integers(1, 4),
    equal=st.booleans(),
)
def test_units_stay_whole(rows: list[tuple[int, int]], parts: int, equal: bool) -> None:
    """X7: rows of a group or pair are never separated; equal counts then count units."""
    unit = torch.tensor([u for u, _ in rows], dtype=torch.int64)
    index = partition(
        torch.tensor([c for _, c in rows], dtype=torch.float64),
        parts,
        unit_S=unit,
        equal_counts=equal,
    )
    assert sorted(torch.cat(index).tolist()) == list(range(len(rows)))
    held = [set(unit[part].tolist()) for part in index]
    assert sum(map(len, held)) == len(set().union(*held))
    if equal:
        assert max(map(len, held)) - min(map(len, held)) <= 1


@pytest.mark.parametrize(
    ("rows", "parts"), [(512, 8), (512, 16), (2048, 64), (4096, 32), (8192, 8), (8192, 64)]
)
def test_log_normal_lengths_are_even_to_a_fifth_of_a_percent(rows: int, parts: int) -> None:
    """Y9: with equal counts."""
    for seed in range(2):
        cost_S = log_normal_costs(rows, seed=seed)
        index = partition(cost_S, parts, equal_counts=True)
        assert {len(part) for part in index} == {rows // parts}
        assert imbalance(cost_S, index) <= 0.002


@pytest.mark.parametrize(("rows", "parts", "bound"), [(4096, 32, 0.05), (8192, 8, 0.003)])
def test_dealing_alone_is_nearly_even(
    rows: int, parts: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y9: exchanges have only the rest to even out, however few of them there may be."""
    module = importlib.import_module("hexpo.domain.balance.partition")
    monkeypatch.setattr(module, "_EXCHANGES_A_PART", 0)
    for seed in range(2):
        cost_S = log_normal_costs(rows, seed=seed)
        assert imbalance(cost_S, partition(cost_S, parts, equal_counts=True)) <= bound


def test_where_one_row_outweighs_the_mean_its_part_is_the_lightest_possible() -> None:
    """Y9: 8 rows a part, and the costliest row is heavier than a mean part."""
    cost_S = log_normal_costs(512, seed=0)
    ordered = cost_S.sort().values
    bound = float(ordered[-1] + ordered[:7].sum())
    assert bound > float(cost_S.sum()) / 64
    index = partition(cost_S, 64, equal_counts=True)
    assert max(float(cost_S[part].sum()) for part in index) <= bound * 1.002


def test_the_same_costs_give_the_same_partition() -> None:
    """H1: ties are broken by place, not by chance."""
    cost_S = torch.ones(20)
    first, again = partition(cost_S, 3), partition(cost_S, 3)
    assert [part.tolist() for part in first] == [part.tolist() for part in again]


def test_imbalance_is_the_heaviest_part_over_the_mean_less_one() -> None:
    """Y9."""
    cost_S = torch.tensor([3.0, 1.0, 2.0])
    assert imbalance(cost_S, [torch.tensor([0]), torch.tensor([1, 2])]) == 0.0
    assert imbalance(cost_S, [torch.tensor([0, 1]), torch.tensor([2])]) == pytest.approx(1 / 3)
    assert imbalance(torch.zeros(2), [torch.tensor([0]), torch.tensor([1])]) == 0.0


def test_senseless_requests_are_refused() -> None:
    """M4."""
    with pytest.raises(WrongValue, match="0 parts"):
        partition(torch.ones(2), 0)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(WrongValue, match="finite and not negative"):
            partition(torch.tensor([1.0, bad]), 2)
    with pytest.raises(WrongColumn, match=r"must both be \(S,\)"):
        partition(torch.ones(2), 2, unit_S=torch.tensor([1]))


def test_costs_are_a_sum_over_matrices_and_pairs() -> None:
    """a and b from the model's shape, counted by hand for a tiny one."""
    shape = ModelShape(
        layers=2,
        hidden=8,
        heads=2,
        head_size=4,
        key_value_heads=1,
        intermediate=16,
        vocabulary=10,
    )
    query_and_output, keys_and_values, feed_forward = 2 * 8 * 8, 2 * 8 * 4, 3 * 8 * 16
    per_token = 2 * (query_and_output + keys_and_values + feed_forward) + 8 * 10
    per_pair = 2 * 2 * 4  # layers x heads x head size: half of L^2 pairs, scores and values
    length_S = torch.tensor([0, 1, 5])
    want = per_token * length_S.double() + per_pair * length_S.double() ** 2
    assert_close(costs(length_S, shape), want)


@pytest.mark.parametrize("cost", [[11, 16, 18, 4, 12, 14], [19, 9, 15, 16, 22]])
def test_an_exchange_looks_at_the_next_cheaper_row_too(cost: list[int]) -> None:
    """D2: heaviest first is off; the swap that evens it out is of a row below the ideal one."""
    index = partition(torch.tensor(cost, dtype=torch.float64), 2)
    loads = sorted(sum(cost[row] for row in part.tolist()) for part in index)
    assert loads == [sum(cost) // 2, -(-sum(cost) // 2)]


@pytest.mark.parametrize("equal", [True, False])
def test_rows_of_a_part_ascend_in_a_large_batch_of_equal_costs(equal: bool) -> None:
    """D1: an unstable sort keeps the order of ties of a dozen rows and loses that of a hundred."""
    index = partition(torch.ones(300), 4, equal_counts=equal)
    assert all(part.tolist() == sorted(part.tolist()) for part in index)
    assert sorted(torch.cat(index).tolist()) == list(range(300))
