"""Native attention of runs against torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.attention import Segment, attend, runs_of
from hexpo.adapters.models.kernels import Kernels, load_kernels

HEAD, GROUP, KEYS = 32, 3, 2
NATIVE = load_kernels(head_dim=HEAD, group=GROUP)
WIDTH = (GROUP * KEYS + 2 * KEYS) * HEAD
SCALE = HEAD**-0.5

needs_compiler = pytest.mark.skipif(not NATIVE.native, reason="no C compiler here")
segments = st.lists(
    st.builds(
        Segment.of,
        st.integers(0, 40),
        st.lists(st.integers(0, 70), min_size=1, max_size=4),
    ).filter(lambda segment: segment.size > 0 and max(segment.rests) > 0),
    min_size=1,
    max_size=3,
)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_gradient(
    qkv: Tensor, given: list[Segment], pull: Tensor, kernels: Kernels | None
) -> tuple[Tensor, Tensor]:
    leaf = qkv.clone().requires_grad_()
    out = attend(
        leaf, given, heads=GROUP * KEYS, kv_heads=KEYS, scale=SCALE, kernels=kernels
    )  # fmt: skip
    out.backward(pull.to(out.dtype))
    assert leaf.grad is not None
    return out.detach(), leaf.grad


@needs_compiler
@given(segments, st.sampled_from([torch.float32, torch.bfloat16]), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_native_attention_and_its_gradient_are_those_of_torch_in_double(
    given: list[Segment], dtype: torch.dtype, seed: int
) -> None:
    """Any prefixes and rows; in bf16 no further from the truth than a few roundings."""
    tokens = sum(segment.size for segment in given)
    qkv = normal(seed, tokens, WIDTH).to(dtype)
    pull = normal(seed + 1, tokens, GROUP * KEYS * HEAD).to(dtype)
    exact = with_gradient(qkv.double(), given, pull.double(), None)
    near = 2e-5 if dtype == torch.float32 else 2**-6
    for made, expected in zip(with_gradient(qkv, given, pull, NATIVE), exact, strict=True):
        assert made.dtype == dtype
        scale = float(expected.abs().max())
        torch.testing.assert_close(made.double(), expected, rtol=near, atol=near * max(1.0, scale))


@needs_compiler
def test_the_gradient_is_the_same_bit_for_bit_with_any_number_of_threads() -> None:
    """Parts of a prefix's gradient are added in one order."""
    given = [Segment.of(37, [20, 31, 5, 9]), Segment.of(0, [33])]
    tokens = sum(segment.size for segment in given)
    qkv, pull = normal(0, tokens, WIDTH), normal(1, tokens, GROUP * KEYS * HEAD)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(with_gradient(qkv, given, pull, NATIVE))
    finally:
        torch.set_num_threads(before)
    for out, gradient in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_runs_cover_each_token_once_and_name_their_prefix() -> None:
    """A prefix is a run of its own; a row without tokens is none."""
    given = [Segment.of(4, [2, 0, 3]), Segment.of(0, [5])]
    assert runs_of(given).tolist() == [[0, 4, 0, 0], [4, 2, 0, 4], [6, 3, 0, 4], [9, 5, 9, 0]]


@needs_compiler
def test_what_is_not_finite_stays_visible() -> None:
    """A NaN in one row's query spoils that token alone; one in a prefix, all that see it."""
    given = [Segment.of(3, [2, 2])]
    qkv = normal(0, 7, WIDTH)
    qkv[5, 0] = torch.nan
    out = attend(qkv, given, heads=GROUP * KEYS, kv_heads=KEYS, scale=SCALE, kernels=NATIVE)
    assert out.isnan().any(1).tolist() == [False] * 5 + [True, False]
