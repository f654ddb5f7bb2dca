"""The output layer by a team of ranks: each has some ids of the vocabulary, or some tokens."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.head import Head, Loss, gradients_of
from hexpo.adapters.models.kernels import LabelLogprobs
from hexpo.adapters.training.fsdp.team import Team


@attrs.frozen(kw_only=True, eq=False)
class VocabularyHead(Head):
    """Logits of this rank's ids only; statistics are those of the whole vocabulary.

    `weight_VH` is the piece of ids `span`. Ranks exchange three numbers a token, never logits.
    """

    team: Team
    span: slice

    def two_pass(self, hidden_MH: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        return super().two_pass(self.team.enter(hidden_MH), labels_M)

    def one_pass(self, hidden_MH: Tensor, labels_M: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        return super().one_pass(self.team.enter(hidden_MH), labels_M, loss)

    def squares(self, hidden_MH: Tensor) -> Tensor:
        parts = [torch.zeros(0)]
        with torch.no_grad():
            for span in self._spans(len(hidden_MH)):
                scaled_NV = self._logits(hidden_MH[span]).float() / self.temperature
                lse_N = self.team.all(scaled_NV.logsumexp(-1)).logsumexp(0)
                own_N = (scaled_NV - lse_N[:, None]).exp().square().sum(-1)
                parts.append(self.team.all(own_N).sum(0))
        return torch.cat(parts)

    def _own(self, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Which labels are this rank's, and their rows here; 0 for the others."""
        is_own_N = (labels_N >= self.span.start) & (labels_N < self.span.stop)
        return is_own_N, torch.where(is_own_N, labels_N - self.span.start, 0)

    def _statistics(self, logits_NV: Tensor, labels_N: Tensor) -> LabelLogprobs:
        is_own_N, own_N = self._own(labels_N)
        here = super()._statistics(logits_NV, own_N)
        label_N = torch.where(is_own_N, here.logprobs_N + here.lse_N, 0.0)
        mean_N = here.lse_N - here.entropy_N  # of this rank's logits, under its own probabilities
        lse_PN, mean_PN, label_PN = self.team.all(
            torch.stack((here.lse_N, mean_N, label_N))
        ).unbind(1)
        lse_N = lse_PN.logsumexp(0)
        weights_PN = (lse_PN - lse_N).exp()
        return LabelLogprobs(
            logprobs_N=label_PN.sum(0) - lse_N,
            lse_N=lse_N,
            entropy_N=lse_N - (weights_PN * mean_PN).sum(0),
        )

    def _pull(
        self, logits_NV: Tensor, labels_N: Tensor, statistics: LabelLogprobs, pulls_2N: Tensor
    ) -> None:
        is_own_N, own_N = self._own(labels_N)
        alien_n = (~is_own_N).nonzero()[:, 0]  # their labels are not id 0, as they seem to be
        logp_n = logits_NV[alien_n, 0].float() / self.temperature - statistics.lse_N[alien_n]
        super()._pull(logits_NV, own_N, statistics, pulls_2N)
        of_label_n, of_entropy_n = pulls_2N[:, alien_n]
        pull_n = of_label_n + of_entropy_n * (logp_n + statistics.entropy_N[alien_n])
        logits_NV[alien_n, 0] = (-logp_n.exp() * pull_n / self.temperature).to(logits_NV.dtype)


@attrs.frozen(kw_only=True, eq=False)
class SharedHead:
    """Another head, for this rank's consecutive part of the tokens; all ranks get all numbers.

    A separable loss takes the way of the others: it is evaluated once, on all tokens.
    """

    head: Head
    team: Team

    def measure(self, hidden_MH: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """As `Head` has it."""
        span = self.team.span(len(labels_M))
        own = torch.stack(self.head.measure(hidden_MH[span], labels_M[span]))
        with torch.no_grad():
            logprobs_M, entropy_M = self._all(own, len(labels_M)).unbind()
        return logprobs_M, entropy_M

    def squares(self, hidden_MH: Tensor) -> Tensor:
        """As `Head` has it."""
        with torch.no_grad():
            return per_token(self.team, hidden_MH, self.head.squares)

    def two_pass(self, hidden_MH: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """As `Head` has it."""
        span = self.team.span(len(labels_M))
        own = torch.stack(self.head.two_pass(hidden_MH[span], labels_M[span]))
        policy_M, entropy_M = self._all(own, len(labels_M)).unbind()
        return policy_M, entropy_M

    def one_pass(self, hidden_MH: Tensor, labels_M: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """As `Head` has it."""
        measured = torch.stack(self.two_pass(hidden_MH, labels_M))
        leaves = [column.detach().requires_grad_() for column in measured]
        value = loss(slice(None), *leaves)
        pulls_2M = gradients_of(value, leaves)
        pulled = (measured * pulls_2M).sum()
        return value.detach() + (pulled - pulled.detach()), pulls_2M

    def _all(self, own_2m: Tensor, tokens: int) -> Tensor:
        return _everywhere(self.team, own_2m, tokens)


def per_token(team: Team, x_MH: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
    """(M,) what `work` gives for each token, a part of the tokens on each rank; all get all."""
    return _everywhere(team, work(x_MH[team.span(len(x_MH))]), len(x_MH))


def _everywhere(team: Team, own: Tensor, tokens: int) -> Tensor:
    """(..., M) from this rank's (..., m)."""
    span = team.span(tokens)
    before, after = own.new_zeros(*own.shape[:-1], span.start), tokens - span.stop
    return team.leave(torch.cat((before, own, own.new_zeros(*own.shape[:-1], after)), -1))
