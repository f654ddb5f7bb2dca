"""Native kernels against their eager twins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.kernels import (
    Kernels,
    Places,
    functions,
    load_kernels,
    rope_tables,
)
from hexpo.domain.errors import WrongColumn

HEAD, GROUP = 32, 3
NATIVE = load_kernels(head_dim=HEAD, group=GROUP)
EAGER = load_kernels(head_dim=HEAD, group=GROUP, native=False)
TILED = Kernels(bfloat16=None, float32=None, tiles=True)
# Two roundings to bf16 differ by one step of 2^-8; fp32 sums differ in their order only.
TOLERANCE = {torch.bfloat16: 2**-7, torch.float32: 2e-5}

dtypes = st.sampled_from([torch.bfloat16, torch.float32])
shapes = st.tuples(st.integers(1, 9), st.integers(1, 70), st.integers(0, 2**31))

needs_compiler = pytest.mark.skipif(not NATIVE.native, reason="no C compiler here")
properties = settings(deadline=None, max_examples=40)


def normal(seed: int, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    scale = max(1.0, float(expected.float().abs().max()))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=tolerance, atol=tolerance * scale
    )


@needs_compiler
@given(shapes, dtypes)
@properties
def test_the_norm_and_its_gradients_equal_the_eager_twin(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Kernels equal their oracle."""
    rows, width, seed = shape
    x, grad = normal(seed, 2, rows, width, dtype=dtype).unbind()
    weight = normal(seed + 1, width, dtype=dtype)
    y, rstd = NATIVE.rms_norm_rstd(x, weight, 1e-5)
    expected, expected_rstd = EAGER.rms_norm_rstd(x, weight, 1e-5)
    assert_near(y, expected, dtype)
    assert_near(NATIVE.rms_norm(x, weight, 1e-5), EAGER.rms_norm(x, weight, 1e-5), dtype)
    assert_near(rstd, expected_rstd, torch.float32)
    pairs = zip(
        NATIVE.rms_norm_backward(grad, x, weight, rstd),
        EAGER.rms_norm_backward(grad, x, weight, rstd),
        strict=True,
    )
    for actual, wanted in pairs:
        assert_near(actual, wanted, dtype)


@needs_compiler
def test_the_norms_gradient_is_the_same_bit_for_bit_with_any_number_of_threads() -> None:
    """Parts of the weight's gradient are added in one order."""
    x, grad = normal(0, 2, 300, 70, dtype=torch.bfloat16).unbind()
    weight = normal(1, 70, dtype=torch.bfloat16)
    _, rstd = NATIVE.rms_norm_rstd(x, weight, 1e-5)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(NATIVE.rms_norm_backward(grad, x, weight, rstd)[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[1], found[0])
    assert torch.equal(found[2], found[0])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_id_that_is_impossible_has_no_share_in_log_probs_and_gradients(
    dtype: torch.dtype,
) -> None:
    """A logit of minus infinity, and one far below: no NaN, and the entropy of the others."""
    logits = torch.zeros(1, 40, dtype=dtype)
    logits[0, 4:20], logits[0, 20:] = -torch.inf, -1000
    statistics = NATIVE.label_logprobs(logits, torch.tensor([1]))
    torch.testing.assert_close(statistics.entropy_N, torch.tensor([4.0]).log())
    torch.testing.assert_close(statistics.logprobs_N, -torch.tensor([4.0]).log())
    one = torch.ones(1)
    NATIVE.logits_gradient_(logits, torch.tensor([1]), statistics, one, one)
    assert_near(logits[0, :4], torch.tensor([-0.25, 0.75, -0.25, -0.25]), dtype)
    assert not logits[0, 4:].any()


@needs_compiler
@given(shapes, dtypes, st.floats(0.1, 60))
@properties
def test_the_gated_activation_and_its_gradient_equal_the_eager_twin(
    shape: tuple[int, int, int], dtype: torch.dtype, scale: float
) -> None:
    """Kernels equal their oracle, far from 0 as well."""
    rows, width, seed = shape
    gate_up = normal(seed, rows, 2 * width, dtype=dtype, scale=scale)
    grad = normal(seed + 1, rows, width, dtype=dtype)
    assert_near(NATIVE.swiglu(gate_up), EAGER.swiglu(gate_up), dtype)
    assert_near(NATIVE.swiglu_backward(grad, gate_up), EAGER.swiglu_backward(grad, gate_up), dtype)


@needs_compiler
@given(shapes, dtypes)
@properties
def test_a_rotation_equals_the_eager_twin_and_turns_back(
    shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Kernels equal their oracle; heads beyond `heads` are left alone."""
    rows, heads, seed = shape[0], 1 + shape[1] % 4, shape[2]
    x = normal(seed, rows, 5 * HEAD, dtype=dtype)
    cos, sin = rope_tables(100, HEAD, 1e4)
    positions = torch.randint(0, 100, (rows,), generator=torch.Generator().manual_seed(seed))
    actual, expected = x.clone(), x.clone()
    NATIVE.rotate_(actual, positions, cos, sin, heads=heads)
    EAGER.rotate_(expected, positions, cos, sin, heads=heads)
    assert_near(actual, expected, dtype)
    assert torch.equal(actual[:, heads * HEAD :], x[:, heads * HEAD :])
    NATIVE.rotate_(actual, positions, cos, sin, heads=heads, inverse=True)
    assert_near(actual, x, dtype)


@needs_compiler
@given(shapes, dtypes)
@properties
def test_a_transposed_copy_is_exact(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Kernels equal their oracle."""
    x = normal(shape[2], 17 * shape[0], shape[1], dtype=dtype)
    assert torch.equal(NATIVE.transpose(x), x.t())


@needs_compiler
@given(shapes, dtypes, st.floats(0.3, 3.0), st.booleans())
@properties
def test_label_logprobs_and_the_logit_gradient_equal_the_eager_twin(
    shape: tuple[int, int, int], dtype: torch.dtype, temperature: float, with_entropy: bool
) -> None:
    """Kernels equal their oracle, at any temperature, with and without an entropy term."""
    rows, width, seed = shape
    logits = normal(seed, rows, 40 * width, dtype=dtype, scale=3)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 40 * width, (rows,), generator=generator)
    dlogprob, dentropy = torch.randn(2, rows, generator=generator).unbind()
    of_entropy = dentropy if with_entropy else None
    actual = NATIVE.label_logprobs(logits, labels, temperature=temperature)
    expected = EAGER.label_logprobs(logits, labels, temperature=temperature)
    for name in ("logprobs_N", "lse_N", "entropy_N"):
        assert_near(getattr(actual, name), getattr(expected, name), torch.float32)
    native, eager = logits.clone(), logits.clone()
    NATIVE.logits_gradient_(native, labels, actual, dlogprob, of_entropy, temperature=temperature)
    EAGER.logits_gradient_(eager, labels, expected, dlogprob, of_entropy, temperature=temperature)
    assert_near(native, eager, dtype)


@pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
def test_the_logit_gradient_is_that_of_autograd(kernels: Kernels) -> None:
    """A kernel's gradient is the derivative of its own forward."""
    logits = normal(0, 7, 300, dtype=torch.float32, scale=2).requires_grad_()
    labels = torch.arange(7) * 3
    dlogprob, dentropy = normal(1, 2, 7, dtype=torch.float32).unbind()
    logp = torch.log_softmax(logits / 0.7, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    (dlogprob @ logp[torch.arange(7), labels] + dentropy @ entropy).backward()
    overwritten = logits.detach().clone()
    statistics = kernels.label_logprobs(overwritten, labels, temperature=0.7)
    kernels.logits_gradient_(overwritten, labels, statistics, dlogprob, dentropy, temperature=0.7)
    assert logits.grad is not None
    torch.testing.assert_close(statistics.entropy_N, entropy.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(overwritten, logits.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", [NATIVE, EAGER, TILED], ids=["native", "eager", "tiled"])
def test_differentiable_kernels_have_the_gradients_of_plain_torch(kernels: Kernels) -> None:
    """Autograd functions against torch, fp32."""
    x = normal(0, 6, 4 * HEAD, dtype=torch.float32).requires_grad_()
    norm = normal(1, 4 * HEAD, dtype=torch.float32).requires_grad_()
    weight = normal(2, 4 * HEAD, 4 * HEAD, dtype=torch.float32, scale=0.1).requires_grad_()
    cos, sin = rope_tables(50, HEAD, 1e4)
    positions = torch.tensor([0, 3, 1, 49, 7, 7])

    def with_kernels() -> Tensor:
        y = functions.linear(kernels, functions.rms_norm(kernels, x, norm, 1e-6), [weight])
        y = functions.rotate(kernels, y, positions, cos, sin, heads=3)
        return functions.swiglu(kernels, y)

    def plain() -> Tensor:
        y = torch.nn.functional.rms_norm(x, (4 * HEAD,), norm, 1e-6) @ weight.t()
        heads = y.view(6, 4, HEAD)
        a, b = heads[:, :3].chunk(2, -1)
        c, s = cos[positions][:, None], sin[positions][:, None]
        y = torch.cat((torch.cat((a * c - b * s, b * c + a * s), -1), heads[:, 3:]), 1)
        gate, up = y.view(6, -1).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    grad = normal(3, 6, 2 * HEAD, dtype=torch.float32)
    actual = torch.autograd.grad(with_kernels(), (x, norm, weight), grad)
    expected = torch.autograd.grad(plain(), (x, norm, weight), grad)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
@given(st.integers(0, 2**31), st.integers(1, 2000), dtypes, st.floats(0.2, 3.0), st.booleans())
@properties
def test_a_draw_is_the_inverse_of_the_distribution_function(
    kernels: Kernels,
    seed: int,
    vocabulary: int,
    dtype: torch.dtype,
    temperature: float,
    is_filtered: bool,
) -> None:
    """The drawn id is the first whose distribution function passes the uniform number; its
    log-prob is that of the renormalised distribution (double precision as the oracle)."""
    logits = normal(seed, 5, vocabulary, dtype=dtype, scale=3)
    uniforms = torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    floors = torch.full((5,), float("-inf"))
    if is_filtered:
        floors = logits.float().quantile(0.7, dim=-1)
    tokens, logprobs = kernels.sample(logits, uniforms, torch.full((5,), temperature), floors)
    kept = logits.double().masked_fill(logits.float() < floors[:, None], float("-inf"))
    logp = torch.log_softmax(kept / temperature, -1)
    cdf = logp.exp().cumsum(-1)
    for i, token in enumerate(tokens.tolist()):
        assert logits[i, token].float() >= floors[i]
        before = float(cdf[i, token - 1]) if token else 0.0
        assert before - 1e-6 <= float(uniforms[i]) <= float(cdf[i, token]) + 1e-6
        assert float(logprobs[i]) == pytest.approx(float(logp[i, token]), abs=2e-5)


@pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
def test_draws_have_the_frequencies_of_the_distribution(kernels: Kernels) -> None:
    """A chi-square of 20,000 draws over 8 ids stays below its 99.99 % point."""
    logits = torch.linspace(-1, 1, 8)
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    tokens, _ = kernels.sample(
        logits.expand(count, 8).contiguous(),
        torch.rand(count, dtype=torch.float64, generator=generator),
        torch.ones(count),
        torch.full((count,), float("-inf")),
    )
    expected = logits.softmax(-1) * count
    chi_square = ((torch.bincount(tokens, minlength=8) - expected) ** 2 / expected).sum()
    assert float(chi_square) < 29.9


@pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_interval_draw_possible_ids(
    kernels: Kernels, uniform: float
) -> None:
    """An id without mass is never drawn, not even at the last uniform number."""
    logits = torch.full((1, 1300), float("-inf"))
    logits[0, 700:705] = 0.0
    tokens, logprobs = kernels.sample(
        logits,
        torch.tensor([uniform], dtype=torch.float64),
        torch.ones(1),
        torch.full((1,), float("-inf")),
    )
    assert tokens.tolist() == [700 if uniform == 0 else 704]
    assert float(logprobs) == pytest.approx(-1.6094379)


@pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
def test_temperature_zero_takes_the_likeliest_id_with_certainty(kernels: Kernels) -> None:
    """Greedy: the distribution is a point, so the log-prob is 0."""
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 3.5]])
    uniforms = torch.tensor([0.99, 0.0], dtype=torch.float64)
    floors = torch.full((2,), float("-inf"))
    tokens, logprobs = kernels.sample(logits, uniforms, torch.zeros(2), floors)
    assert tokens.tolist() == [1, 2]
    assert logprobs.tolist() == [0.0, 0.0]


@needs_compiler
@given(
    st.integers(0, 2**31),
    dtypes,
    st.booleans(),
    st.lists(st.integers(1, 70), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=25)
def test_cached_attention_equals_the_eager_twin(
    seed: int, dtype: torch.dtype, is_normed: bool, lengths: list[int]
) -> None:
    """Kernels equal their oracle: prompts and single tokens in one pass, blocks in any order."""
    kv_heads, width = 2, 3
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randperm(width * len(lengths) + 2, generator=generator)
    tables = blocks[: width * len(lengths)].view(len(lengths), width)
    keys = normal(seed, len(blocks), kv_heads, HEAD, 32, dtype=dtype)
    values = normal(seed + 1, len(blocks), kv_heads, 32, HEAD, dtype=dtype)
    starts = [seed % 20 if i % 2 else 0 for i in range(len(lengths))]
    cos, sin = rope_tables(100, HEAD, 1e4)
    places = Places(
        tables=tables,
        sequences_R=torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
        positions_R=torch.cat([torch.arange(n) + s for n, s in zip(lengths, starts, strict=True)]),
        cos=cos,
        sin=sin,
    )
    qkv = normal(seed + 2, sum(lengths), (kv_heads * GROUP + 2 * kv_heads) * HEAD, dtype=dtype)
    norms = normal(seed + 3, 2, HEAD, dtype=dtype).unbind() if is_normed else (None, None)
    results = []
    for kernels in (NATIVE, EAGER):
        cache = keys.clone(), values.clone()
        attended = kernels.cached_attention(
            qkv.clone(), *cache, places, q_norm_D=norms[0], k_norm_D=norms[1]
        )
        results.append((*cache, attended))
    for actual, expected in zip(*results, strict=True):
        assert_near(actual, expected, dtype)


@needs_compiler
@given(
    st.integers(0, 2**31),
    dtypes,
    st.booleans(),
    st.lists(st.integers(0, 95), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=25)
def test_rows_that_are_alone_are_written_and_attended_to_in_one_pass(
    seed: int, dtype: torch.dtype, is_normed: bool, positions: list[int]
) -> None:
    """Bit for bit what two passes give; places after a row's own, NaN here, are never read."""
    rows, kv_heads = len(positions), 2
    tables = torch.randperm(3 * rows).view(rows, 3)
    keys = normal(seed, 3 * rows, kv_heads, HEAD, 32, dtype=dtype)
    values = normal(seed + 1, 3 * rows, kv_heads, 32, HEAD, dtype=dtype)
    for row, position in enumerate(positions):
        for place in range(position, 96):
            keys[tables[row, place // 32], :, :, place % 32] = torch.nan
            values[tables[row, place // 32], :, place % 32] = torch.nan
    qkv = normal(seed + 2, rows, (kv_heads * GROUP + 2 * kv_heads) * HEAD, dtype=dtype)
    norms = normal(seed + 3, 2, HEAD, dtype=dtype).unbind() if is_normed else (None, None)
    cos, sin = rope_tables(100, HEAD, 1e4)
    results = []
    for alone in (True, False):
        own = qkv.clone(), keys.clone(), values.clone()
        places = Places(
            tables=tables,
            sequences_R=torch.arange(rows),
            positions_R=torch.tensor(positions),
            cos=cos,
            sin=sin,
            alone=alone,
        )
        attended = NATIVE.cached_attention(*own, places, q_norm_D=norms[0], k_norm_D=norms[1])
        assert attended.isfinite().all()
        results.append((*own, attended))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_view_that_would_be_changed_in_place_is_refused() -> None:
    """A typed error instead of a silent copy."""
    cos, sin = rope_tables(4, HEAD, 1e4)
    x = torch.zeros(2 * HEAD, 2).t()
    with pytest.raises(WrongColumn, match="contiguous"):
        NATIVE.rotate_(x, torch.zeros(2, dtype=torch.int64), cos, sin, heads=1)


def test_nan_survives_rounding() -> None:
    """A broken activation stays visible to whoever checks for it."""
    x = torch.full((1, HEAD), float("nan"), dtype=torch.bfloat16)
    assert NATIVE.rms_norm(x, torch.ones(HEAD, dtype=torch.bfloat16), 1e-5).isnan().all()
