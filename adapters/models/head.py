"""Log-probs and entropies from hidden states, a chunk of tokens at a time.

The logits of one chunk exist at a time, in the hidden states' precision: the peak grows with
chunk x vocabulary, never with tokens x vocabulary (I1). Two ways to a gradient: `one_pass` makes
it while the chunk's logits are there, for losses in which each token stands alone; `two_pass`
computes the logits again in backward, for all others.

M is the number of selected tokens, one hidden state and one label each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function

from hexpo.adapters.models.kernels import Kernels, LabelLogprobs
from hexpo.adapters.models.sums import sum_of
from hexpo.domain.errors import WrongValue

Loss = Callable[[slice, Tensor, Tensor], Tensor]
"""Of the tokens in a slice: takes their log-probs and entropies, gives one number to be added."""


@attrs.frozen(kw_only=True, eq=False)
class Head:
    """The output layer: logits = hidden weight^T, no bias."""

    weight_VH: Tensor
    """The live weight; its gradient is made if it requires one."""
    kernels: Kernels
    temperature: float
    """Logits are divided by it: log-probs are those of what was sampled."""
    chunk: int = 512
    """Tokens whose logits exist at once."""

    def __attrs_post_init__(self) -> None:
        if self.temperature <= 0 or self.chunk < 1:
            raise WrongValue(
                f"a head needs a temperature above 0 and a chunk of at least 1 token, not"
                f" {self.temperature} and {self.chunk}; greedy sampling has no log-probs to train"
            )

    def measure(self, hidden_MH: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of the labels and entropies, (M,) fp32 in nats, without gradient."""
        with torch.no_grad():
            parts = [
                self._statistics(self._logits(hidden_MH[span]), labels_M[span])
                for span in self._spans(len(labels_M))
            ]
        return _join(parts)

    def squares(self, hidden_MH: Tensor) -> Tensor:
        """(M,) fp32 sums of the squared probabilities, without gradient."""
        with torch.no_grad():
            parts = [
                (self._logits(hidden_MH[span]).float() / self.temperature)
                .softmax(-1)
                .square()
                .sum(-1)
                for span in self._spans(len(hidden_MH))
            ]
        return torch.cat([torch.zeros(0), *parts])

    def two_pass(self, hidden_MH: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """The same with gradients of hidden states and weight; logits are made again for them."""
        policy_M, entropy_M, _ = _TwoPass.apply(hidden_MH, self.weight_VH, labels_M, self)  # type: ignore[no-untyped-call]
        return policy_M, entropy_M

    def one_pass(self, hidden_MH: Tensor, labels_M: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """The sum of a separable loss over chunks; gradients are ready when it returns.

        A weight that has a sum (see `sums`) gets its gradient there at once: backward of anything
        but the loss itself would be wrong for it.

        Returns: the loss, whose backward hands the gradients out, and (2, M) fp32, the loss's
            gradient in each token's log-prob and entropy.
        """
        return _OnePass.apply(hidden_MH, self.weight_VH, labels_M, self, loss)  # type: ignore[no-any-return,no-untyped-call]

    def _spans(self, tokens: int) -> Iterator[slice]:
        for first in range(0, tokens, self.chunk):
            yield slice(first, min(tokens, first + self.chunk))

    def _logits(self, hidden_NH: Tensor) -> Tensor:
        return hidden_NH @ self.weight_VH.t()

    def _statistics(self, logits_NV: Tensor, labels_N: Tensor) -> LabelLogprobs:
        return self.kernels.label_logprobs(logits_NV, labels_N, temperature=self.temperature)

    def _pull(
        self, logits_NV: Tensor, labels_N: Tensor, statistics: LabelLogprobs, pulls_2N: Tensor
    ) -> None:
        """Overwrite logits by the gradient of pulls . (log-probs, entropies)."""
        of_entropy = pulls_2N[1] if bool(pulls_2N[1].any()) else None
        self.kernels.logits_gradient_(
            logits_NV, labels_N, statistics, pulls_2N[0], of_entropy, temperature=self.temperature
        )


def _join(parts: list[LabelLogprobs]) -> tuple[Tensor, Tensor]:
    if not parts:
        return torch.zeros(0), torch.zeros(0)
    return (
        torch.cat([part.logprobs_N for part in parts]),
        torch.cat([part.entropy_N for part in parts]),
    )


class Gradients:
    """Collects the gradients of hidden states and weight over chunks; sums in fp32."""

    def __init__(self, head: Head, hidden_MH: Tensor, *, of_weight: bool) -> None:
        self._kernels, self._weight_VH = head.kernels, head.weight_VH
        self.hidden_MH = torch.empty_like(hidden_MH)
        self._own = sum_of(head.weight_VH) is None
        self._sum_VH: Tensor | None = None
        if of_weight:
            fresh = torch.zeros_like(head.weight_VH, dtype=torch.float32) if self._own else None
            self._sum_VH = fresh if fresh is not None else sum_of(head.weight_VH)

    def add(self, span: slice, gradient_NV: Tensor, hidden_NH: Tensor) -> None:
        """Of the tokens in a slice, from the (N, V) gradient of their logits."""
        torch.mm(gradient_NV, self._weight_VH.detach(), out=self.hidden_MH[span])
        if self._sum_VH is not None:
            self._kernels.add_product_(self._sum_VH, gradient_NV, hidden_NH)

    @property
    def weight_VH(self) -> Tensor | None:
        """None, too, where the weight has a sum: the gradient is in it."""
        if self._sum_VH is None or not self._own:
            return None
        return self._sum_VH.to(self._weight_VH.dtype)


class _TwoPass(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MH: Tensor, weight_VH: Tensor, labels_M: Tensor, head: Head
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = [
            head._statistics(head._logits(hidden_MH[span]), labels_M[span])
            for span in head._spans(len(labels_M))
        ]
        policy_M, entropy_M = _join(parts)
        lse_M = torch.cat([part.lse_N for part in parts]) if parts else torch.zeros(0)
        ctx.save_for_backward(hidden_MH, weight_VH, labels_M, policy_M, lse_M, entropy_M)
        ctx.head = head
        ctx.mark_non_differentiable(lse_M)
        return policy_M, entropy_M, lse_M

    @staticmethod
    def backward(
        ctx: Any, of_policy_M: Tensor, of_entropy_M: Tensor, _: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_MH, _weight, labels_M, policy_M, lse_M, entropy_M = ctx.saved_tensors
        head: Head = ctx.head
        pulls_2M = torch.stack((of_policy_M, of_entropy_M))
        gradients = Gradients(head, hidden_MH, of_weight=ctx.needs_input_grad[1])
        for span in head._spans(len(labels_M)):
            logits_NV = head._logits(hidden_MH[span])
            statistics = LabelLogprobs(
                logprobs_N=policy_M[span], lse_N=lse_M[span], entropy_N=entropy_M[span]
            )
            head._pull(logits_NV, labels_M[span], statistics, pulls_2M[:, span])
            gradients.add(span, logits_NV, hidden_MH[span])
        return gradients.hidden_MH, gradients.weight_VH, None, None


class _OnePass(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MH: Tensor, weight_VH: Tensor, labels_M: Tensor, head: Head, loss: Loss
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        pulls_2M = torch.zeros(2, len(labels_M))
        gradients = Gradients(head, hidden_MH, of_weight=weight_VH.requires_grad)
        for span in head._spans(len(labels_M)):
            logits_NV = head._logits(hidden_MH[span])
            statistics = head._statistics(logits_NV, labels_M[span])
            value, pulls_2M[:, span] = _pulls(loss, span, statistics)
            total += value
            head._pull(logits_NV, labels_M[span], statistics, pulls_2M[:, span])
            gradients.add(span, logits_NV, hidden_MH[span])
        ctx.save_for_backward(gradients.hidden_MH, gradients.weight_VH)
        ctx.mark_non_differentiable(pulls_2M)
        return total, pulls_2M

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MH, weight_VH = ctx.saved_tensors
        if weight_VH is not None:
            weight_VH = weight_VH * of_loss.to(weight_VH.dtype)
        return hidden_MH * of_loss.to(hidden_MH.dtype), weight_VH, None, None, None


def _pulls(loss: Loss, span: slice, statistics: LabelLogprobs) -> tuple[Tensor, Tensor]:
    """A chunk's loss and its gradient (2, N) in log-probs and entropies."""
    with torch.enable_grad():
        leaves = [
            statistics.logprobs_N.clone().requires_grad_(),
            statistics.entropy_N.clone().requires_grad_(),
        ]
        value = loss(span, leaves[0], leaves[1])
    return value.detach(), gradients_of(value, leaves)


def gradients_of(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """(len(leaves), N) gradients of a number, 0 for leaves that it does not read."""
    if not value.requires_grad:
        return torch.stack([torch.zeros_like(leaf) for leaf in leaves])
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return torch.stack(
        [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, found, strict=True)
        ]
    )
