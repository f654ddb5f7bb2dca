"""The exact divergence of a token's distribution, and its bound from a top-k."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hexpo.domain.errors import WrongColumn
from hexpo.domain.kl import full, full_top_k


def _pair(seed: int, size: int, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, rows, size, generator=noise, dtype=torch.float64)
    return logits[0].requires_grad_(), logits[1].log_softmax(-1)


def test_the_three_token_example() -> None:
    """O07.2: value 0.274887 and the gradient to the logits."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).double().log().requires_grad_()
    reference = torch.tensor([[0.2, 0.3, 0.5]]).double().log()
    value = full(policy_logprobs_T=logits.log_softmax(-1), reference_logprobs_T=reference)
    value.sum().backward()
    assert_close(value.detach(), torch.tensor([0.274887]).double(), rtol=0, atol=1e-6)
    expected = torch.tensor([[0.320702, -0.082466, -0.238236]]).double()
    assert_close(logits.grad, expected, rtol=0, atol=1e-6)


@given(seed=st.integers(0, 10_000), size=st.integers(2, 9), data=st.data())
def test_a_top_k_bounds_the_divergence_from_below(
    seed: int, size: int, data: st.DataObject
) -> None:
    """S1: never negative, at most the full one, equal to it at k = V, with its gradient."""
    logits, reference = _pair(seed, size)
    policy = logits.log_softmax(-1)
    exact = full(policy_logprobs_T=policy, reference_logprobs_T=reference)
    kept = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    kept = kept[: data.draw(st.integers(1, size))]
    coarse = full_top_k(
        policy_reference_topk_T=policy[:, kept], reference_topk_T=reference[:, kept]
    )
    assert bool((coarse >= -1e-9).all())
    assert bool((coarse <= exact + 1e-9).all())
    if len(kept) == size:
        assert_close(coarse, exact, rtol=1e-6, atol=1e-8)
        (grad_exact,) = torch.autograd.grad(exact.sum(), logits, retain_graph=True)
        (grad_coarse,) = torch.autograd.grad(coarse.sum(), logits)
        assert_close(grad_coarse, grad_exact, rtol=1e-5, atol=1e-7)


def test_equal_distributions_have_none() -> None:
    """S1, C10."""
    logits, _ = _pair(1, 5)
    policy = logits.detach().log_softmax(-1)
    zero = torch.zeros(3, dtype=torch.float64)
    assert torch.equal(full(policy_logprobs_T=policy, reference_logprobs_T=policy), zero)
    top = policy[:, :2]
    assert_close(full_top_k(policy_reference_topk_T=top, reference_topk_T=top), zero)


def test_a_token_that_the_policy_never_takes_adds_nothing() -> None:
    """C9: a filter's -inf on both sides, value and gradient finite."""
    logits = torch.tensor([[0.0, 1.0, -torch.inf]]).double().requires_grad_()
    reference = torch.tensor([[1.0, 0.0, -torch.inf]]).double().log_softmax(-1)
    policy = logits.log_softmax(-1)
    value = full(policy_logprobs_T=policy, reference_logprobs_T=reference)
    two = full(policy_logprobs_T=policy[:, :2].detach(), reference_logprobs_T=reference[:, :2])
    assert_close(value.detach(), two)


def test_a_column_without_a_vocabulary_is_refused() -> None:
    """The message says what is needed."""
    with pytest.raises(WrongColumn, match="distribution"):
        full(policy_logprobs_T=torch.zeros(3), reference_logprobs_T=torch.zeros(3))
