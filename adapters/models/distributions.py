"""Losses that compare distributions: value and gradient, a chunk of tokens at a time.

A chunk's logits become log-probs in single precision; the loss takes from them what it compares,
those of kept ids or all of them, and autograd carries its gradient back to these logits. The peak
grows with chunk x vocabulary, never with tokens x vocabulary (I1).

M is the number of selected tokens, one hidden state and one label each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function

from hexpo.adapters.models.head import Gradients, Head

Loss = Callable[[slice, Mapping[str, Tensor]], Tensor]
"""Of the tokens in a slice: takes their head statistics by name, gives one number to be added."""

SHARE = 4
"""A chunk has so many times fewer tokens than the head's: it holds several tensors of logits."""


@attrs.frozen(kw_only=True, eq=False)
class Compared:
    """What of the distributions a loss reads, beside the label's log-prob and the entropy."""

    ids: Mapping[str, Tensor] = MappingProxyType({})
    """(M, K) int64: by the name of a statistic, the ids whose log-probs it is."""
    whole: str = ""
    """The statistic that is all log-probs; empty: none is."""
    other: str = ""
    """The statistic that is all log-probs of another model, a constant; empty: none is."""
    other_MH: Tensor | None = None
    """Hidden states of that model."""
    other_head: Head | None = None
    """Its output layer."""

    def of(self, span: slice, logprobs_NV: Tensor) -> dict[str, Tensor]:
        """The statistics of the tokens in a slice."""
        found = {name: logprobs_NV.gather(1, ids[span]) for name, ids in self.ids.items()}
        if self.whole:
            found[self.whole] = logprobs_NV
        if self.other and self.other_MH is not None and self.other_head is not None:
            with torch.no_grad():
                found[self.other] = _logprobs(self.other_head, self.other_MH[span])
        return found


def top(head: Head, hidden_MH: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest ids of each token and their log-probs, likeliest first, without gradient.

    Returns: (M, K) fp32 nats and (M, K) int64; K is `count`, or the vocabulary where it has fewer.
    """
    width = min(count, head.weight_VH.shape[0])
    logprobs_MK = torch.zeros(len(hidden_MH), width)
    ids_MK = torch.zeros(len(hidden_MH), width, dtype=torch.int64)
    with torch.no_grad():
        for span in _spans(head, len(hidden_MH)):
            found = _logprobs(head, hidden_MH[span]).topk(width, dim=-1)
            logprobs_MK[span], ids_MK[span] = found.values, found.indices
    return logprobs_MK, ids_MK


def one_pass(
    head: Head, hidden_MH: Tensor, labels_M: Tensor, loss: Loss, compared: Compared
) -> tuple[Tensor, Tensor]:
    """The sum of a separable loss over chunks; gradients are ready when it returns.

    As `Head.one_pass`, for losses that read distributions; gradients of chunks are summed in fp32.

    Returns: the loss, whose backward hands the gradients out, and (1, M) fp32, the size of each
        token's gradient: the sum of its parts' sizes over the vocabulary.
    """
    return _Compare.apply(hidden_MH, head.weight_VH, labels_M, head, loss, compared)  # type: ignore[no-any-return,no-untyped-call]


def _spans(head: Head, tokens: int) -> Iterator[slice]:
    chunk = max(1, head.chunk // SHARE)
    for first in range(0, tokens, chunk):
        yield slice(first, min(tokens, first + chunk))


def _logits(head: Head, hidden_NH: Tensor) -> Tensor:
    return hidden_NH @ head.weight_VH.detach().t()


def _logprobs(head: Head, hidden_NH: Tensor) -> Tensor:
    return (_logits(head, hidden_NH).float() / head.temperature).log_softmax(-1)


class _Compare(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        labels_M: Tensor,
        head: Head,
        loss: Loss,
        compared: Compared,
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        pulls_1M = torch.zeros(1, len(labels_M))
        gradients = Gradients(head, hidden_MH, of_weight=weight_VH.requires_grad)
        for span in _spans(head, len(labels_M)):
            logits_NV = _logits(head, hidden_MH[span])
            value, gradient_NV = _pull(loss, span, logits_NV, labels_M, head, compared)
            total += value
            pulls_1M[0, span] = torch.linalg.vector_norm(gradient_NV, ord=1, dim=-1)
            gradients.add(span, gradient_NV.to(logits_NV.dtype), hidden_MH[span])
        ctx.save_for_backward(gradients.hidden_MH, gradients.weight_VH)
        ctx.mark_non_differentiable(pulls_1M)
        return total, pulls_1M

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MH, weight_VH = ctx.saved_tensors
        if weight_VH is not None:
            weight_VH = weight_VH * of_loss.to(weight_VH.dtype)
        return hidden_MH * of_loss.to(hidden_MH.dtype), weight_VH, None, None, None, None


def _pull(
    loss: Loss,
    span: slice,
    logits_NV: Tensor,
    labels_M: Tensor,
    head: Head,
    compared: Compared,
) -> tuple[Tensor, Tensor]:
    """A chunk's loss and its (N, V) gradient in the logits."""
    leaf_NV = logits_NV.detach().float().requires_grad_()
    with torch.enable_grad():
        logprobs_NV = (leaf_NV / head.temperature).log_softmax(-1)
        statistics = {
            "policy": logprobs_NV.gather(1, labels_M[span, None])[:, 0],
            "entropy": -(logprobs_NV.exp() * logprobs_NV).sum(-1),
            **compared.of(span, logprobs_NV),
        }
        value = loss(span, statistics)
    if not value.requires_grad:
        return value.detach(), torch.zeros_like(leaf_NV)
    return value.detach(), torch.autograd.grad(value, leaf_NV)[0]
