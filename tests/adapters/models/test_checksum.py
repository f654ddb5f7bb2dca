"""The compiled checksum is the eager one, faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.models.kernels import native
from hexpo.domain.digest import Digester, sum_of, sum_of_words

LIBRARY = native.load_checksum()
needs_compiler = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
COLUMNS, BLOCK = 1021, 64 * 1021


@pytest.fixture(scope="module")
def words() -> Callable[[Tensor], int]:
    assert LIBRARY is not None
    return checksum.compiled(LIBRARY)


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
    plain, compiled = Digester(), checksum.digester()
    monkeypatch.setattr(native, "COMPILERS", ("no-such-compiler",))
    checksum._library.cache_clear()
    without = checksum.digester()
    checksum._library.cache_clear()
    for name, tensor in tensors.items():
        for digester in (plain, compiled, without):
            digester.add(name, tensor)
    assert plain.digest == compiled.digest == without.digest


@needs_compiler
def test_it_is_compiled_once(tmp_path: Path) -> None:
    """A second load finds the first one's file."""
    native.load_checksum(folder=tmp_path)
    (path,) = tmp_path.iterdir()
    made = path.stat().st_mtime_ns
    native.load_checksum(folder=tmp_path)
    assert path.name.startswith("checksum-")
    assert path.stat().st_mtime_ns == made
