"""Cached decoding in torch: where blocks lie changes nothing but the time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.kernels import Places, load_kernels, rope_tables

HEAD, KV, GROUP = 32, 2, 3
COS, SIN = rope_tables(128, HEAD, 1e4)
KERNELS = load_kernels(head_dim=HEAD, group=GROUP, native=False)


def places_of(tables: list[list[int]], positions: list[int]) -> Places:
    return Places(
        tables=torch.tensor(tables),
        sequences_R=torch.arange(len(tables)),
        positions_R=torch.tensor(positions),
        cos=COS,
        sin=SIN,
        alone=True,
    )


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 3), st.integers(0, 31))
@settings(deadline=None, max_examples=30)
def test_blocks_in_order_shared_or_scattered_are_attended_to_alike(
    seed: int, groups: int, samples: int, last: int
) -> None:
    """Groups that share their first block, read in place and read anywhere: plain attention over
    each row's own past in double precision."""
    rows = groups * samples
    generator = torch.Generator().manual_seed(seed)
    positions = [32 + last - (i % 2) * min(last, 3) for i in range(rows)]
    ordered = [[i // samples, groups + i] for i in range(rows)]
    moved = torch.randperm(groups + rows, generator=generator)
    scattered = moved[torch.tensor(ordered)].tolist()
    pool = torch.randn(2, groups + rows, KV, 32, HEAD, generator=generator)
    qkv = torch.randn(rows, (GROUP * KV + 2 * KV) * HEAD, generator=generator)
    results = []
    for tables in (ordered, scattered):
        there = torch.arange(groups + rows) if tables is ordered else moved.argsort()
        keys, values = pool[0][there].transpose(2, 3).contiguous(), pool[1][there].clone()
        places = places_of(tables, positions)
        results.append(KERNELS.cached_attention(qkv.clone(), keys, values, places))
        for row, position in enumerate(positions):
            expected = plain(qkv[row], keys, values, tables[row], position)
            torch.testing.assert_close(results[-1][row].double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


def plain(qkv_W: Tensor, keys: Tensor, values: Tensor, blocks: list[int], position: int) -> Tensor:
    """One row against its sequence, which the cache holds already."""
    q_QD = qkv_W.view(-1, HEAD)[: GROUP * KV].double()
    cos, sin = COS[position].double(), SIN[position].double()
    a, b = q_QD.chunk(2, -1)
    q_KGD = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).view(KV, GROUP, HEAD)
    k = torch.cat([keys[block].transpose(1, 2) for block in blocks], 1)[:, : position + 1].double()
    v = torch.cat([values[block] for block in blocks], 1)[:, : position + 1].double()
    weights = (q_KGD @ k.transpose(1, 2) * HEAD**-0.5).softmax(-1)
    return (weights @ v).flatten()


@pytest.mark.parametrize(
    ("blocks", "sharing", "expected"),
    [
        ([4, 5, 6], 1, slice(4, 7)),
        ([3, 3, 4, 4], 2, slice(3, 5)),
        ([7, 7, 7], 3, slice(7, 8)),
        ([5, 9, 2], 1, [5, 9, 2]),
        ([6, 6, 2, 2], 2, [6, 2]),
        ([1, 1, 2, 2, 3], 1, [1, 1, 2, 2, 3]),
    ],
)
def test_a_column_is_read_in_place_and_once_where_its_blocks_allow_it(
    blocks: list[int], sharing: int, expected: slice | list[int]
) -> None:
    """Neighbours that share a block, and blocks that follow each other."""
    (column,) = places_of([[block] for block in blocks], [0] * len(blocks)).columns
    found = column.blocks if isinstance(column.blocks, slice) else column.blocks.tolist()
    assert (column.sharing, found) == (sharing, expected)


def test_rows_at_one_place_of_blocks_that_follow_each_other_are_one_slice() -> None:
    """The cache is written by slices where rows began together."""
    places = places_of([[0, 4], [0, 5], [0, 6], [1, 2], [1, 3]], [40, 40, 40, 40, 41])
    assert places.slices == [
        (slice(0, 3), slice(4, 7), 8),
        (slice(3, 4), slice(2, 3), 8),
        (slice(4, 5), slice(3, 4), 9),
    ]
