"""Products with packed weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.decode.linear import PackedLinear, TiledLinear, load_linear
from hexpo.adapters.models.kernels import load_kernels
from hexpo.adapters.models.kernels.dispatch import PAYS

NATIVE = load_kernels(head_dim=32, group=3)
EAGER = load_kernels(head_dim=32, group=3, native=False)
packs = pytest.mark.skipif(
    NATIVE.pack(torch.zeros(2, 2, dtype=torch.bfloat16)) is None,
    reason="this processor's own library multiplies as fast",
)
halves = st.integers(1, 60)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_rounded_once(actual: Tensor, exact: Tensor) -> None:
    """Half a bf16 step of the exact value, and the fp32 sum's own error."""
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8 + 1e-5, atol=1e-4)


@packs
@given(st.integers(0, 30), halves, st.integers(1, 110), st.integers(0, 9), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_a_product_with_a_packed_weight_is_rounded_once(
    rows: int, half: int, columns: int, beside: int, seed: int
) -> None:
    """Any shape, rows that lie inside wider tables, with and without something to add."""
    x = normal(seed, rows, 2 * half + beside)[:, beside:]
    weight, more = normal(seed + 1, columns, 2 * half), normal(seed + 2, rows, columns)
    exact = x.double() @ weight.double().t()
    packed = NATIVE.pack(weight)
    turned = NATIVE.pack(weight.t().contiguous(), transposed=True)
    assert packed is not None
    assert turned is not None
    assert_rounded_once(packed.multiply(x), exact)
    assert_rounded_once(packed.multiply(x, more), exact + more.double())
    assert_rounded_once(packed.multiply(x, more.sum(0)), exact + more.sum(0).double())
    assert torch.equal(turned.multiply(x), packed.multiply(x))


@packs
@given(st.integers(1, 700), halves, st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_a_row_does_not_depend_on_the_rows_beside_it(rows: int, half: int, seed: int) -> None:
    """Bit for bit, however many rows there are."""
    x, weight = normal(seed, rows, 2 * half), normal(seed + 1, 50, 2 * half)
    packed = NATIVE.pack(weight)
    assert packed is not None
    row = rows // 2
    assert torch.equal(packed.multiply(x)[row], packed.multiply(x[row : row + 1])[0])


@packs
@pytest.mark.parametrize("sizes", [(96, 48, 20), (20, 50), (7, 5, 8), (1,)])
def test_weights_are_packed_one_after_the_other(sizes: tuple[int, ...]) -> None:
    """The product is that of all of them in one, bit for bit, whether or not each fills panels."""
    weights = [normal(seed, size, 12) for seed, size in enumerate(sizes)]
    x, grad = normal(8, 9, 12), normal(9, 9, sum(sizes))
    several, whole = NATIVE.pack(*weights), NATIVE.pack(torch.cat(weights))
    assert several is not None
    assert whole is not None
    assert torch.equal(several.multiply(x), whole.multiply(x))
    turned = NATIVE.pack(*weights, transposed=True)
    assert (turned is None) == bool(sum(sizes) % 2)
    if turned is not None:
        assert_rounded_once(turned.multiply(grad), grad.double() @ torch.cat(weights).double())


@packs
def test_what_the_layout_cannot_hold_is_left_to_the_library() -> None:
    """An odd number of entries, another type, a matrix that is no whole table."""
    assert NATIVE.pack(normal(0, 4, 7)) is None
    assert NATIVE.pack(normal(0, 7, 4), transposed=True) is None
    assert NATIVE.pack(torch.zeros(4, 4)) is None
    assert NATIVE.pack(normal(0, 4, 8).t()) is None
    assert EAGER.pack(normal(0, 4, 8)) is None


@pytest.mark.parametrize("rows", [1, PAYS - 1, PAYS, PAYS + 5])
@pytest.mark.parametrize("entries", [48, 49])
def test_a_layer_and_its_input_gradient_are_the_eager_ones(rows: int, entries: int) -> None:
    """On either side of the number of rows from which packing pays."""
    x, weight, grad = normal(0, rows, entries), normal(1, 34, entries), normal(2, rows, 34)
    for made, expected in (
        (NATIVE.linear(x, weight), EAGER.linear(x, weight)),
        (NATIVE.linear_backward(grad, weight), EAGER.linear_backward(grad, weight)),
    ):
        torch.testing.assert_close(made.float(), expected.float(), rtol=2**-7, atol=2**-6)


@packs
def test_a_decoder_loads_packed_weights_in_the_faster_layout() -> None:
    """Several weights side by side, with biases; a residual is added before the rounding."""
    weights, biases = [normal(0, 20, 16), normal(1, 30, 16)], [normal(2, 20), normal(3, 30)]
    x, residual = normal(4, 5, 16), normal(5, 5, 50)
    tiled = load_linear(weights, biases, torch.bfloat16, NATIVE, packed=True)
    onednn = load_linear(weights, biases, torch.bfloat16, EAGER, packed=True)
    assert isinstance(tiled, TiledLinear)
    assert isinstance(onednn, PackedLinear)
    exact = x.double() @ torch.cat(weights).double().t() + torch.cat(biases).double()
    assert_rounded_once(tiled(x), exact)
    torch.testing.assert_close(onednn(x).double(), exact, rtol=2**-7, atol=2**-6)
    summed = torch.cat(biases) + residual
    assert_rounded_once(
        tiled.add(x, residual), exact - torch.cat(biases).double() + summed.double()
    )
