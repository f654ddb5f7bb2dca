"""Losses over distributions, chunk by chunk, against logits that exist as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.distributions import SHARE, Compared, one_pass, top
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import load_kernels
from hexpo.adapters.models.sums import tie_sum
from hexpo.domain.distillation.losses import forward_kl, jsd, reverse_kl, skew_kl, skew_reverse_kl
from hexpo.domain.kl.full import full, full_top_k

VOCABULARY, HIDDEN, KEPT = 23, 6, 4
Wide = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]


def _topk(loss: Callable[..., Tensor]) -> Wide:
    return lambda head, stored: loss(
        policy_topk_T=head["policy_topk"], teacher_topk_T=stored["topk"]
    )


LOSSES: dict[str, Wide] = {
    **{
        loss.__name__: _topk(loss)
        for loss in (forward_kl, reverse_kl, jsd, skew_kl, skew_reverse_kl)
    },
    "full_top_k": lambda head, stored: full_top_k(
        policy_reference_topk_T=head["policy_topk"], reference_topk_T=stored["topk"]
    ),
    "full": lambda head, _: full(
        policy_logprobs_T=head["policy_logprobs"], reference_logprobs_T=head["reference_logprobs"]
    ),
    "log-prob and entropy": lambda head, _: 0.3 * head["entropy"] - head["policy"],
}


def head_of(weight_VH: Tensor, *, chunk: int = 512, temperature: float = 0.8) -> Head:
    kernels = load_kernels(head_dim=16, group=1, native=False)
    return Head(weight_VH=weight_VH, kernels=kernels, temperature=temperature, chunk=chunk)


def some(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compared_with(other: Head, other_MH: Tensor) -> tuple[Compared, dict[str, Tensor]]:
    logprobs_MK, ids_MK = top(other, other_MH, KEPT)
    asked = Compared(
        ids={"policy_topk": ids_MK},
        whole="policy_logprobs",
        other="reference_logprobs",
        other_MH=other_MH,
        other_head=other,
    )
    return asked, {"topk": logprobs_MK, "ids": ids_MK}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), tokens=st.integers(0, 9), chunk=st.integers(1, 40))
def test_value_and_gradients_are_those_of_whole_logits(
    name: str, seed: int, tokens: int, chunk: int
) -> None:
    """I1, A1: in chunks of any size, hidden states, weight and value to 1e-5 in fp32."""
    hidden_MH, other_MH = some(seed, tokens, HIDDEN), some(seed + 1, tokens, HIDDEN)
    weight_VH, other = (
        some(seed + 2, VOCABULARY, HIDDEN),
        head_of(some(seed + 3, VOCABULARY, HIDDEN)),
    )
    labels_M = torch.randint(VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed))
    asked, stored = compared_with(other, other_MH)
    scale_M = some(seed + 4, tokens)
    found = []
    for way in ("chunks", "whole"):
        leaves = [hidden_MH.clone().requires_grad_(), weight_VH.clone().requires_grad_()]
        if way == "chunks":
            head = head_of(leaves[1], chunk=chunk)

            def loss(span: slice, statistics: Mapping[str, Tensor]) -> Tensor:
                part = {key: column[span] for key, column in stored.items()}
                return (LOSSES[name](statistics, part) * scale_M[span]).sum()

            value, pulls_1M = one_pass(head, leaves[0], labels_M, loss, asked)
            assert pulls_1M.shape == (1, tokens)
        else:
            logprobs_MV = (leaves[0] @ leaves[1].t() / 0.8).log_softmax(-1)
            statistics = {
                "policy": logprobs_MV.gather(1, labels_M[:, None])[:, 0],
                "entropy": -(logprobs_MV.exp() * logprobs_MV).sum(-1),
                "policy_topk": logprobs_MV.gather(1, stored["ids"]),
                "policy_logprobs": logprobs_MV,
                "reference_logprobs": (other_MH @ other.weight_VH.t() / 0.8).log_softmax(-1),
            }
            value = (LOSSES[name](statistics, stored) * scale_M).sum()
        (2 * value).backward()  # type: ignore[no-untyped-call]
        found.append([value.detach(), *(leaf.grad for leaf in leaves)])
    for chunked, whole in zip(*found, strict=True):
        assert_close(chunked, whole, rtol=1e-5, atol=1e-5)


def test_the_likeliest_ids_are_those_of_whole_logits_and_at_most_the_vocabulary() -> None:
    """S1: at k = V nothing is left for the tail."""
    hidden_MH, head = some(1, 5, HIDDEN), head_of(some(2, VOCABULARY, HIDDEN), chunk=3)
    whole = (hidden_MH @ head.weight_VH.t() / 0.8).log_softmax(-1).topk(KEPT)
    logprobs_MK, ids_MK = top(head, hidden_MH, KEPT)
    assert_close(logprobs_MK, whole.values)
    assert torch.equal(ids_MK, whole.indices)
    every, _ = top(head, hidden_MH, 1000)
    assert every.shape == (5, VOCABULARY)
    assert_close(every.exp().sum(-1), torch.ones(5))


def test_a_loss_never_sees_more_than_a_share_of_the_chunk() -> None:
    """I1: what exists at once does not grow with the tokens."""
    seen: list[tuple[int, ...]] = []

    def loss(span: slice, statistics: Mapping[str, Tensor]) -> Tensor:
        seen.append(tuple(statistics["policy_logprobs"].shape))
        return statistics["policy_logprobs"].sum()

    head = head_of(some(1, VOCABULARY, HIDDEN), chunk=8)
    labels_M = torch.zeros(5, dtype=torch.int64)
    one_pass(head, some(2, 5, HIDDEN), labels_M, loss, Compared(whole="policy_logprobs"))
    assert seen == [(8 // SHARE, VOCABULARY)] * 2 + [(1, VOCABULARY)]


def test_a_weight_with_a_sum_gets_its_gradient_there() -> None:
    """In bf16 it would be rounded on its way to the fp32 master."""
    weight_VH = some(1, VOCABULARY, HIDDEN).bfloat16().requires_grad_()
    sum_VH = torch.zeros(VOCABULARY, HIDDEN)
    tie_sum(weight_VH, sum_VH)
    hidden_MH = some(2, 5, HIDDEN).bfloat16().requires_grad_()
    labels_M = torch.arange(5)
    loss, _ = one_pass(
        head_of(weight_VH),
        hidden_MH,
        labels_M,
        lambda span, statistics: -statistics["policy"].sum(),
        Compared(),
    )
    loss.backward()  # type: ignore[no-untyped-call]
    wide_VH = weight_VH.detach().float().requires_grad_()
    logprobs_MV = (hidden_MH.detach().float() @ wide_VH.t() / 0.8).log_softmax(-1)
    (-logprobs_MV.gather(1, labels_M[:, None]).sum()).backward()  # type: ignore[no-untyped-call]
    assert weight_VH.grad is None
    assert_close(sum_VH, wide_VH.grad, rtol=2e-2, atol=2e-2)


def test_a_token_whose_loss_is_not_finite_is_known_by_its_pull() -> None:
    """J2: the row is blamed, not the whole part."""

    def loss(span: slice, statistics: Mapping[str, Tensor]) -> Tensor:
        scale = torch.tensor([1.0, torch.nan, 1.0])[span]
        return (statistics["policy_topk"].sum(-1) * scale).sum()

    asked = Compared(ids={"policy_topk": torch.zeros(3, 1, dtype=torch.int64)})
    labels_M = torch.zeros(3, dtype=torch.int64)
    head = head_of(some(1, VOCABULARY, HIDDEN), chunk=4)
    _, pulls_1M = one_pass(head, some(2, 3, HIDDEN), labels_M, loss, asked)
    assert pulls_1M.isfinite().tolist() == [[True, False, True]]
