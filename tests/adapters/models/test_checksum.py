"""Compiled passes over memory are the eager ones, faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.models.kernels import memory, native
from hexpo.domain.digest import Digester, sum_of, sum_of_words
from hexpo.domain.errors import WrongBatch

LIBRARY = native.load_memory()
needs_compiler = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
COLUMNS, BLOCK = 1021, 64 * 1021


@pytest.fixture(scope="module")
def words() -> Callable[[Tensor], int]:
    assert LIBRARY is not None
    return checksum.words(LIBRARY)


def random_words(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)


@needs_compiler
@given(
    count=st.one_of(
        st.integers(0, 5000),
        st.sampled_from(
            [n * BLOCK + rest for n in (0, 1, 2, 17) for rest in (0, 1, COLUMNS, 9999)]
        ),
    ),
    seed=st.integers(0, 2**31),
)
def test_it_equals_its_eager_twin(words: Callable[[Tensor], int], count: int, seed: int) -> None:
    """G1: both ends of a transfer agree, whichever of them has a compiler; on several threads."""
    words_W = random_words(count, seed)
    assert words(words_W) % 2**64 == sum_of_words(words_W) % 2**64


@needs_compiler
@pytest.mark.parametrize("start", [0, 1, 2, 5])
def test_tensors_that_begin_anywhere_have_their_sum(
    words: Callable[[Tensor], int], start: int
) -> None:
    """Views of a bucket: their first byte is at no whole word of the storage."""
    tensor = random_words(70_000, start).view(torch.bfloat16)[start : start + 200_003]
    assert sum_of(tensor, words) == sum_of(tensor.clone())


def test_a_digester_is_the_same_with_and_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G1: native code is an option, never a need."""
    tensors = {"a": torch.randn(300, 500), "b": torch.randn(7), "c": torch.zeros(0)}
    plain, compiled, beside = Digester(), checksum.digester(), checksum.digester_beside()
    monkeypatch.setattr(native, "COMPILERS", ("no-such-compiler",))
    memory.library.cache_clear()
    without, not_beside = checksum.digester(), checksum.digester_beside()
    memory.library.cache_clear()
    for name, tensor in tensors.items():
        for digester in (plain, compiled, beside, without, not_beside):
            digester.add(name, tensor)
    assert plain.digest == compiled.digest == beside.digest
    assert plain.digest == without.digest == not_beside.digest


@given(
    sizes=st.lists(st.integers(0, 9000), max_size=12),
    at_once=st.integers(1, 20_000),
    seed=st.integers(0, 2**31),
)
def test_counting_beside_gives_the_same(sizes: list[int], at_once: int, seed: int) -> None:
    """G1: however many are counted in one call; tails, empty tensors, none at all."""
    plain, beside = Digester(), checksum.digester_beside()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "_AT_ONCE", at_once)
        for number, size in enumerate(sizes):
            tensor = random_words(size // 8 + 1, seed + number).view(torch.uint8)[:size]
            plain.add(str(number), tensor)
            beside.add(str(number), tensor)
        assert beside.digest == plain.digest


def test_a_name_that_comes_twice_is_found_beside_too() -> None:
    """G4: at the latest when the digest is asked for."""
    digester = checksum.digester_beside()
    with pytest.raises(WrongBatch, match="a came twice"):  # noqa: PT012 - at either of them
        digester.add("a", torch.ones(3))
        digester.add("a", torch.ones(3))
        _ = digester.digest


@given(
    count=st.one_of(st.integers(0, 300), st.sampled_from([2**20, 2**20 + 77, 9 * 2**20 + 1])),
    start=st.integers(0, 130),
    offset=st.integers(0, 9),
)
def test_a_copy_past_the_cache_writes_these_bytes_and_no_other(
    count: int, start: int, offset: int
) -> None:
    """Any length, from anywhere to anywhere, on several threads."""
    source = random_words((count + offset) // 8 + 1, count).view(torch.uint8)[offset:][:count]
    target = torch.full((start + count + 70,), 7, dtype=torch.uint8)
    memory.copy_past_cache(target[start : start + count], source)
    assert torch.equal(target[start : start + count], source)
    assert bool((target[:start] == 7).all())
    assert bool((target[start + count :] == 7).all())


@needs_compiler
def test_it_is_compiled_once(tmp_path: Path) -> None:
    """A second load finds the first one's file."""
    native.load_memory(folder=tmp_path)
    (path,) = tmp_path.iterdir()
    made = path.stat().st_mtime_ns
    native.load_memory(folder=tmp_path)
    assert path.name.startswith("memory-")
    assert path.stat().st_mtime_ns == made
