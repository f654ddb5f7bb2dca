"""The checksum of weights."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.digest import Digest, Digester, digested, sum_of
from hexpo.domain.errors import WrongBatch

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool)
SIZES = st.sampled_from([0, 1, 3, 7, 8, 9, 100, 4096, 32768, 32769, 70000, 300_001])


def some(count: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-100, 100, (count,), generator=generator)
    return (numbers > 0) if dtype is torch.bool else numbers.to(dtype)


def digest_of(*pairs: tuple[str, Tensor]) -> Digest:
    digester = Digester()
    for name, tensor in pairs:
        digester.add(name, tensor)
    return digester.digest


@given(count=SIZES, dtype=st.sampled_from(DTYPES), place=st.integers(0, 2**30))
def test_any_single_changed_value_changes_the_checksum(
    count: int, dtype: torch.dtype, place: int
) -> None:
    """G1: at every place, in every type, at any length."""
    tensor = some(count, dtype)
    assert sum_of(tensor) == sum_of(tensor.clone())
    if count:
        other = tensor.clone()
        place %= count
        other[place] = ~other[place] if dtype is torch.bool else other[place] + 1
        assert sum_of(other) != sum_of(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_signs_swaps_and_permutations_are_seen(dtype: torch.dtype) -> None:
    """G1: changes of high bits alone, which a plain product would let cancel, and of order."""
    tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    seen = {sum_of(tensor), sum_of(-tensor), sum_of(tensor.flip(0)), sum_of(tensor.roll(4))}
    per_word = 8 // tensor.element_size()
    for picked in (slice(per_word - 1, None, per_word), slice(0, None, per_word)):
        other = tensor.clone()
        other[picked] *= -1
        seen.add(sum_of(other))
    far = tensor.clone()
    far[0], far[65536] = tensor[65536], tensor[0]
    two = tensor.clone()
    two[3], two[7] = -tensor[3], -tensor[7]
    rows = tensor.clone()
    rows[:65536] = tensor[:65536].view(2, -1).flip(0).reshape(-1)
    seen |= {sum_of(far), sum_of(two), sum_of(rows)}
    assert len(seen) == 9


def test_every_pair_of_flipped_signs_has_a_checksum_of_its_own() -> None:
    """Two sign bits: the change that a plain product sees least."""
    generator = random.Random(0)
    tensor = torch.randn(64, generator=torch.Generator().manual_seed(0))
    pairs = {tuple(sorted(generator.sample(range(64), 2))) for _ in range(1500)}
    sums = set()
    for a, b in pairs:
        other = tensor.clone()
        other[a], other[b] = -tensor[a], -tensor[b]
        sums.add(sum_of(other))
    assert len(sums) == len(pairs)


@given(order=st.permutations(range(4)))
def test_order_does_not_matter_and_name_type_and_shape_do(order: list[int]) -> None:
    """The listing is sorted by name; equal bytes under another description differ."""
    tensors = [("a", some(12, torch.float32)), ("b", some(7, torch.int8)),
               ("c", torch.tensor(2.0)), ("d", torch.zeros(0, 3))]  # fmt: skip
    whole = digest_of(*tensors)
    assert digest_of(*(tensors[i] for i in order)) == whole
    assert (whole.tensors, whole.bytes) == (4, 48 + 7 + 4)
    name, tensor = tensors[0]
    others = [("e", tensor), (name, tensor.view(3, 4)), (name, tensor.view(torch.int32))]
    assert (
        len({digest_of(other, *tensors[1:]).checksum for other in others} | {whole.checksum}) == 4
    )
    assert digest_of(*tensors[1:]) != whole


def test_views_are_read_as_their_values() -> None:
    """Storage does not count: transposed, offset, strided."""
    tensor = some(1001, torch.bfloat16)
    assert sum_of(tensor[1:]) == sum_of(tensor[1:].clone())
    square = some(900, torch.float32).view(30, 30)
    assert sum_of(square.t()) == sum_of(square.t().contiguous())
    assert sum_of(square.t()) != sum_of(square)


def test_a_name_that_comes_twice_is_an_error_and_a_stream_passes_unchanged() -> None:
    """One tensor a name."""
    tensor = some(5, torch.float32)
    digester = Digester()
    assert [name for name, _ in digested(iter([("a", tensor)]), digester)] == ["a"]
    assert digester.digest == digest_of(("a", tensor))
    with pytest.raises(WrongBatch, match="a came twice"):
        digester.add("a", tensor)


@pytest.mark.parametrize(
    ("count", "want"),
    [
        (0, 0x9E3779B97F4A7C15),
        (1, 0x03DBF477C2AF69E7),
        (8, 0xBFA716BB8CB6DBA9),
        (9, 0xF50BF7153033992C),
        (8184, 0x9D5531DCE73CB245),
        (1_584_616, 0x2FBCFD1AD30A821A),
    ],
)
def test_the_sum_is_the_same_in_every_version(count: int, want: int) -> None:
    """G1: two machines may run two releases; a word, a tail, rows, and three blocks and more."""
    bytes_B = torch.arange(count).mul(37).add(11).remainder(251).to(torch.uint8)
    assert sum_of(bytes_B) == want
