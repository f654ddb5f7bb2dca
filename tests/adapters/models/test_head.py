"""Log-probs and entropies in chunks equal the plain way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import Kernels, load_kernels
from hexpo.domain.errors import WrongValue

_EAGER = load_kernels(head_dim=16, group=1, native=False)
_NATIVE = load_kernels(head_dim=16, group=1)


def _case(tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 16, generator=draw, requires_grad=True)
    weight = torch.randn(37, 16, generator=draw, requires_grad=True)
    labels = torch.randint(0, 37, (tokens,), generator=draw)
    return hidden, weight, labels, torch.randn(2, tokens, generator=draw)


def _plain(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float
) -> tuple[Tensor, ...]:
    logp = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    return logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 40),
    chunk=st.integers(1, 50),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    kernels=st.sampled_from([_EAGER, _NATIVE]),
    seed=st.integers(0, 99),
)
def test_chunks_change_neither_value_nor_gradient(
    tokens: int, chunk: int, temperature: float, kernels: Kernels, seed: int
) -> None:
    """I1: both ways, with pulls on log-prob and entropy, within 1e-5 in fp32."""
    hidden, weight, labels, pulls = _case(tokens, seed)
    head = Head(weight_VH=weight, kernels=kernels, temperature=temperature, chunk=chunk)

    def loss(span: slice, policy: Tensor, entropy: Tensor) -> Tensor:
        return (policy * pulls[0, span] + entropy.square() * pulls[1, span]).sum()

    plain = _plain(hidden, weight, labels, temperature)
    wanted = torch.autograd.grad(loss(slice(None), plain[0], plain[1]), (hidden, weight))

    two = head.two_pass(hidden, labels)
    assert_close(two, plain, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(loss(slice(None), *two), (hidden, weight))
    assert_close(found, wanted, rtol=1e-4, atol=1e-5)

    value, _ = head.one_pass(hidden, labels, loss)
    assert_close(value, loss(slice(None), plain[0], plain[1]), rtol=1e-5, atol=1e-4)
    assert_close(torch.autograd.grad(value, (hidden, weight)), wanted, rtol=1e-4, atol=1e-5)
    assert_close(head.measure(hidden, labels), two)


def test_a_frozen_weight_gets_no_gradient() -> None:
    """Low-rank adapters leave the head alone: no V x H tensor is made for it."""
    hidden, weight, labels, _ = _case(5, 0)
    head = Head(weight_VH=weight.detach(), kernels=_EAGER, temperature=1.0)
    value, _ = head.one_pass(hidden, labels, lambda span, policy, entropy: policy.sum())
    value.backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_a_loss_that_pulls_on_nothing_gives_zero_gradients() -> None:
    """A3."""
    hidden, weight, labels, _ = _case(5, 0)
    head = Head(weight_VH=weight, kernels=_EAGER, temperature=1.0)
    value, pulls = head.one_pass(hidden, labels, lambda span, policy, entropy: torch.zeros(()))
    value.backward()
    assert not pulls.any()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_a_greedy_temperature_is_refused() -> None:
    """Log-probs of greedy sampling are all 0: there is nothing to train."""
    with pytest.raises(WrongValue, match="temperature"):
        Head(weight_VH=torch.zeros(2, 2), kernels=_EAGER, temperature=0.0)
