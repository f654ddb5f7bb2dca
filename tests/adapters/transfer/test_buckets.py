"""Packing, unpacking, parts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.transfer.wire import Packer, unpacked, wait_until, whole
from hexpo.application.ports.transfer import Weight
from hexpo.domain.errors import EngineFailed

DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float64)
SHAPES = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    max_size=12,
)


def made(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(50).to(dtype)


def through_buckets(
    tensors: list[tuple[str, Tensor]], *, size: int, listing: int
) -> list[tuple[str, Tensor]]:
    """Pack into one reused memory, as a ring of one slot; a bucket is read before the next."""
    memory = torch.zeros(size, dtype=torch.uint8)
    found: list[tuple[str, Tensor]] = []
    buckets: list[tuple[bytes, Tensor]] = []
    packer = Packer(
        size,
        take=lambda: memory,
        put=lambda text, used: buckets.append((text, memory[:used].clone())),
        listing=listing,
    )
    for name, tensor in tensors:
        packer.add(name, tensor)
    packer.flush()
    assert all(len(text) <= listing and len(data) <= size for text, data in buckets)
    for name, tensor in unpacked(buckets):
        found.append((name, tensor.clone()))
    return found


@given(shapes=SHAPES, size=st.sampled_from([64, 128, 1024, 1 << 16]))
def test_every_stream_comes_out_as_it_went_in(
    shapes: list[tuple[tuple[int, ...], torch.dtype]], size: int
) -> None:
    """Scalars, empty tensors, any type, tensors longer than a bucket."""
    tensors = [
        (f"layer.{i}.weight", made(shape, dtype, i)) for i, (shape, dtype) in enumerate(shapes)
    ]
    found = through_buckets(tensors, size=size, listing=700)
    assert [name for name, _ in found] == [name for name, _ in tensors]
    for (_, came), (_, went) in zip(found, tensors, strict=True):
        assert came.dtype == went.dtype
        assert came.shape == went.shape
        assert torch.equal(came, went)


def test_a_tensor_that_fits_a_bucket_is_not_cut() -> None:
    """It is then read where it lies, without a copy."""
    memory, listings = torch.zeros(1024, dtype=torch.uint8), list[bytes]()
    packer = Packer(
        1024, take=lambda: memory, put=lambda text, used: listings.append(text), listing=4096
    )
    packer.add("a", torch.zeros(200))
    packer.add("b", torch.zeros(100))
    packer.flush()
    assert [json.loads(text) for text in listings] == [
        [["a", "float32", [200], 0, 0, 800]],
        [["b", "float32", [100], 0, 0, 400]],
    ]


def parts(tensor: Tensor, cuts: list[int]) -> Iterator[Weight]:
    bounds = [0, *cuts, len(tensor)]
    for start, end in itertools.pairwise(bounds):
        yield Weight(name="w", shape=tuple(tensor.shape), tensor=tensor[start:end], start=start)


@given(cuts=st.lists(st.integers(1, 8), max_size=3, unique=True).map(sorted))
def test_parts_of_a_tensor_are_joined(cuts: list[int]) -> None:
    """A rank's shards, one after the other."""
    tensor = torch.arange(27.0).view(9, 3)
    ((name, found),) = whole(parts(tensor, cuts))
    assert name == "w"
    assert torch.equal(found, tensor)


def test_parts_with_a_gap_or_without_an_end_are_refused_by_name() -> None:
    """Half a tensor is never sent as a whole one."""
    tensor = torch.arange(27.0).view(9, 3)
    several = list(parts(tensor, [3, 6]))
    with pytest.raises(EngineFailed, match="w: a part starts at row 6 where row 3"):
        list(whole([several[0], several[2]]))
    with pytest.raises(EngineFailed, match="w: 6 of its 9 rows"):
        list(whole(several[:2]))
    other = Weight(name="v", shape=(), tensor=torch.tensor(1.0))
    with pytest.raises(EngineFailed, match="w: 3 of its 9 rows"):
        list(whole([several[0], other]))
    with pytest.raises(EngineFailed, match="w ended after 64 bytes"):
        list(unpacked([(b'[["w", "float32", [32], 0, 0, 64]]', torch.zeros(64).byte())]))


def test_a_wait_ends_within_its_bound_and_says_for_what() -> None:
    """F4."""
    wait_until(lambda: True, bound_seconds=0.0, awaited="nothing")
    with pytest.raises(EngineFailed, match=r"waited 0.01 s in vain for the moon"):
        wait_until(lambda: False, bound_seconds=0.01, awaited="the moon")
