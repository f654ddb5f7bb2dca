"""Gradients that are added to single precision sums as they are made."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import Kernels, functions, load_kernels
from hexpo.adapters.models.sums import tie_sum

NATIVE = load_kernels(head_dim=32, group=3)
EAGER = load_kernels(head_dim=32, group=3, native=False)
both = pytest.mark.parametrize("kernels", [NATIVE, EAGER], ids=["native", "eager"])
sizes = st.integers(1, 110)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@given(st.integers(1, 40), sizes, sizes, st.integers(0, 60), st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_a_product_is_added_to_its_sum_without_rounding(
    entries: int, rows: int, columns: int, beside: int, seed: int
) -> None:
    """Any shape, operands that lie inside wider tables; the native one is exact to fp32."""
    a = normal(seed, entries, rows + beside)[:, beside:]
    b, before = normal(seed + 1, entries, columns), normal(seed + 2, rows, columns).float()
    expected = before.double() + a.double().t() @ b.double()
    for kernels, tolerance in ((NATIVE, 1e-4), (EAGER, 2**-5 * entries)):
        sum_ = before.clone()
        kernels.add_product_(sum_, a, b)
        torch.testing.assert_close(sum_.double(), expected, rtol=1e-5, atol=tolerance)


@both
def test_a_linear_layer_adds_to_the_sums_of_its_weights(kernels: Kernels) -> None:
    """The input's gradient is as ever; the weights have none of their own."""
    x = normal(0, 7, 48).requires_grad_()
    weights = [normal(1, 16, 48).requires_grad_(), normal(2, 24, 48).requires_grad_()]
    pull = normal(3, 7, 40)
    functions.linear(kernels, x, weights).backward(pull)
    plain = [w.grad for w in weights]
    dx = x.grad
    x.grad, sums = None, [torch.ones(16, 48), torch.ones(24, 48)]
    for weight, sum_ in zip(weights, sums, strict=True):
        weight.grad = None
        tie_sum(weight, sum_)
    functions.linear(kernels, x, weights).backward(pull)
    assert dx is not None
    assert torch.equal(x.grad, dx)
    assert all(weight.grad is None for weight in weights)
    for sum_, gradient in zip(sums, plain, strict=True):
        assert gradient is not None
        torch.testing.assert_close(sum_ - 1, gradient.float(), rtol=2**-7, atol=2**-5)
    tie_sum(weights[0], None)
    functions.linear(kernels, x, weights).backward(pull)
    assert weights[0].grad is not None


def test_a_table_adds_the_rows_that_were_read() -> None:
    """Rows read twice count twice; the padding row is not trained."""
    table = normal(0, 10, 4, dtype=torch.float32).requires_grad_()
    ids = torch.tensor([3, 3, 9, 0])
    pull = normal(1, 4, 4, dtype=torch.float32)
    functions.embedding(table, ids, 0).backward(pull)
    expected, table.grad, sum_ = table.grad, None, torch.zeros(10, 4)
    tie_sum(table, sum_)
    functions.embedding(table, ids, 0).backward(pull)
    assert table.grad is None
    assert expected is not None
    torch.testing.assert_close(sum_, expected)


@both
@pytest.mark.parametrize("passes", ["one", "two"])
def test_a_head_adds_to_its_sum(kernels: Kernels, passes: str) -> None:
    """Both ways to a gradient, several chunks."""
    hidden = normal(0, 9, 48).requires_grad_()
    weight = normal(1, 60, 48).requires_grad_()
    labels = torch.arange(9)
    head = Head(weight_VH=weight, kernels=kernels, temperature=1.0, chunk=4)

    def backward() -> None:
        if passes == "one":
            head.one_pass(hidden, labels, lambda _, policy, entropy: -policy.sum())[0].backward()
        else:
            (-head.two_pass(hidden, labels)[0].sum()).backward()

    backward()
    expected, weight.grad, sum_ = weight.grad, None, torch.zeros(60, 48)
    tie_sum(weight, sum_)
    backward()
    assert weight.grad is None
    assert expected is not None
    torch.testing.assert_close(sum_, expected.float(), rtol=2**-6, atol=2**-5)
