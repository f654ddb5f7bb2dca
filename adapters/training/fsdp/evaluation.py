"""An objective over a part's tokens: which head makes the gradient of which term.

Terms whose tokens stand alone get loss and gradient in one pass over the head's logits. Others
(a ratio of the whole sequence) need all log-probs first, and the logits a second time. Terms that
compare distributions never see more than a chunk of them, so they always take the first way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models import distributions
from hexpo.adapters.models.distributions import Compared
from hexpo.adapters.models.head import Head, gradients_of
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Measure, mean_of, merge, total
from hexpo.domain.objective import KEPT_IDS, Objective

if TYPE_CHECKING:
    from hexpo.adapters.training.fsdp.heads import SharedHead

_POLICY, _REFERENCE = "policy_logprobs", "reference_logprobs"


def require_whole_head(head: object) -> Head:
    """The head itself. Raises Unsupported: ranks share it."""
    if type(head) is not Head:
        raise Unsupported(
            "terms that compare distributions need all ids of the vocabulary, and all tokens, on"
            " each rank: use them without tensor_parallel and sequence_parallel"
        )
    return head


@attrs.frozen(eq=False)
class Other:
    """Another model's hidden states of the same tokens, and its head."""

    hidden_MH: Tensor
    head: Head


class Evaluation:
    """The objective on slices of a part's selected tokens, with the metrics of all of them."""

    def __init__(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        *,
        reports: bool = True,
    ) -> None:
        """Args: reports: count tokens and entropy, which one of several evaluations does."""
        self._objective, self._sequences, self._columns = objective, sequences, columns
        self._reports = reports
        self._metrics: list[Mapping[str, Measure]] = []

    def __call__(self, span: slice, policy_N: Tensor, entropy_N: Tensor) -> Tensor:
        """Of log-probs and entropies alone."""
        return self.of(span, {"policy": policy_N, "entropy": entropy_N})

    def of(self, span: slice, statistics: Mapping[str, Tensor]) -> Tensor:
        """Of all head statistics that the terms read."""
        columns = {name: column[span] for name, column in self._columns.items()}
        loss, metrics = self._objective.evaluate({**columns, **statistics}, self._sequences)
        self._metrics.append(metrics)
        if self._reports:
            entropy_N = statistics["entropy"].detach()
            own = {
                "train/entropy": mean_of(float(entropy_N.sum()), entropy_N.numel()),
                "train/tokens": total(entropy_N.numel()),
            }
            self._metrics.append(own)
        return loss

    def metrics(self) -> dict[str, Measure]:
        """Of all slices so far."""
        return merge(self._metrics)


class Plan:
    """How a part's loss and gradient are made; `measure` runs beside the weights."""

    def __init__(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        other: Other | None,
    ) -> None:
        """Args: columns: of the selected tokens. other: the reference, where it is compared with.

        Raises: Unsupported: a term that compares distributions reads several tokens at once.
        """
        self._compared = _compared(objective, columns, other)
        self._apart: Evaluation | None = None
        self._separable = objective.separable
        if objective.compares and not objective.separable:
            every = range(len(objective.terms))
            plain = [place for place in every if place not in objective.compares]
            wide, wide_rows = objective.take(objective.compares, sequences)
            if not wide.separable:
                raise Unsupported(
                    "a term that compares distributions must give one number a token, from that"
                    " token alone: it may not read `owner`"
                )
            self._apart = Evaluation(wide, wide_rows, columns, reports=False)
            objective, sequences = objective.take(plain, sequences)
        self._main = Evaluation(objective, sequences, columns)

    def measure(
        self, head: Head | SharedHead, hidden_MH: Tensor, labels_M: Tensor
    ) -> tuple[Tensor, ...]:
        """Losses and pulls, or log-probs and entropies: what backward starts from."""
        if self._separable and self._compared is None:
            return head.one_pass(hidden_MH, labels_M, self._main)
        if self._separable:
            return self._compare(head, hidden_MH, labels_M, self._main)
        measured = head.two_pass(hidden_MH, labels_M)
        if self._apart is None:
            return measured
        return *measured, *self._compare(head, hidden_MH, labels_M, self._apart)

    def _compare(
        self, head: object, hidden_MH: Tensor, labels_M: Tensor, evaluation: Evaluation
    ) -> tuple[Tensor, Tensor]:
        whole, compared = require_whole_head(head), self._compared or Compared()
        return distributions.one_pass(whole, hidden_MH, labels_M, evaluation.of, compared)

    def settle(self, measured: tuple[Tensor, ...]) -> Settled:
        """The loss, and each token's pull; no gradient has been handed out yet."""
        if self._separable:
            loss, pulls = measured
            return Settled((loss,), (torch.ones_like(loss),), loss.detach(), pulls)
        leaves = [column.detach().requires_grad_() for column in measured[:2]]
        value = self._main(slice(None), *leaves)
        pulls = gradients_of(value, leaves)
        roots, starts = measured[:2], pulls.unbind()
        if self._apart is None:
            return Settled(roots, starts, value.detach(), pulls)
        loss, own = measured[2:]
        return Settled(
            (*roots, loss),
            (*starts, torch.ones_like(loss)),
            value.detach() + loss.detach(),
            torch.cat((pulls, own)),
        )

    def metrics(self) -> dict[str, Measure]:
        """Of the whole part."""
        apart = {} if self._apart is None else self._apart.metrics()
        return {**self._main.metrics(), **apart}


@attrs.frozen(eq=False)
class Settled:
    """A part's loss, ready for backward."""

    roots: tuple[Tensor, ...]
    starts: tuple[Tensor, ...]
    """The loss's gradient in each root."""
    loss: Tensor
    pulls: Tensor
    """(n, M): of each token, by which a bad row is known."""

    def backward(self) -> None:
        """Add the gradient to the weights'."""
        torch.autograd.backward(self.roots, self.starts)


def _compared(
    objective: Objective, columns: Mapping[str, Tensor], other: Other | None
) -> Compared | None:
    """What the terms read of distributions; None where none does."""
    if not objective.compares:
        return None
    asked = objective.statistics
    ids = {name: columns[KEPT_IDS[name]] for name in asked & KEPT_IDS.keys()}
    return Compared(
        ids=ids,
        whole=_POLICY if _POLICY in asked else "",
        other=_REFERENCE if _REFERENCE in asked else "",
        other_MH=None if other is None else other.hidden_MH,
        other_head=None if other is None else other.head,
    )
