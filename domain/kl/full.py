"""The exact KL(policy || reference) of a token's distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.errors import WrongColumn

LEAST_TAIL = 1e-12
"""Least mass of a tail: rounding must not make its logarithm meaningless."""


def full(*, policy_logprobs_T: Tensor, reference_logprobs_T: Tensor) -> Tensor:
    """The divergence over the vocabulary: exact in value and gradient.

    sum over the vocabulary p (log p - log q)

    Args: (T, V) each, floating, log-probs of all tokens in nats; the first carries gradient.
            -inf where the policy gives no mass is legal, and adds 0.
    Returns: (T,), in the dtype of `policy_logprobs_T`.
    Raises: WrongColumn: axes disagree.
    Source: Kullback and Leibler 1951.
    """
    _check(policy_logprobs_T, reference_logprobs_T)
    return _summed(policy_logprobs_T, reference_logprobs_T)


def full_top_k(*, policy_reference_topk_T: Tensor, reference_topk_T: Tensor) -> Tensor:
    """The divergence over some tokens and a tail that holds the rest: a lower bound of `full`.

    sum over K tokens p (log p - log q) + p' (log p' - log q'), p' = 1 - sum p, q' = 1 - sum q

    Args: (T, K) each, floating, log-probs in nats of the same K different tokens, those that the
            reference finds likeliest; the first carries gradient.
    Returns: (T,), in the dtype of `policy_reference_topk_T`; equal to `full` where K = V.
    Raises: WrongColumn: axes disagree.
    Source: as `full`; merging outcomes lowers a divergence (data processing inequality).
    """
    policy_TK, reference_TK = policy_reference_topk_T, reference_topk_T
    _check(policy_TK, reference_TK)
    tails = (_log_tail(policy_TK), _log_tail(reference_TK))
    tail_T = tails[0].exp() * (tails[0] - tails[1])
    return _summed(policy_TK, reference_TK) + tail_T


def full_measures(*, policy_logprobs_T: Tensor, reference_logprobs_T: Tensor) -> dict[str, Tensor]:
    """(T,): the divergence."""
    columns = {
        "policy_logprobs_T": policy_logprobs_T,
        "reference_logprobs_T": reference_logprobs_T,
    }
    return {"kl": full(**columns)}


def full_top_k_measures(
    *, policy_reference_topk_T: Tensor, reference_topk_T: Tensor
) -> dict[str, Tensor]:
    """(T,) each: the divergence, and the mass on kept ids of the policy and of the reference."""
    value_T = full_top_k(
        policy_reference_topk_T=policy_reference_topk_T, reference_topk_T=reference_topk_T
    )
    return {
        "kl": value_T,
        "policy_kept_mass": policy_reference_topk_T.exp().sum(-1),
        "reference_kept_mass": reference_topk_T.exp().sum(-1),
    }


def _summed(policy_TV: Tensor, reference_TV: Tensor) -> Tensor:
    has_mass_TV = policy_TV > -torch.inf
    policy_TV = policy_TV.masked_fill(~has_mass_TV, 0.0)
    gap_TV = policy_TV - reference_TV.masked_fill(~has_mass_TV, 0.0)
    return (policy_TV.exp() * gap_TV).masked_fill(~has_mass_TV, 0.0).sum(-1)


def _log_tail(logprobs_TK: Tensor) -> Tensor:
    """(T,) the logarithm of what the K tokens leave."""
    return (1 - logprobs_TK.exp().sum(-1)).clamp(min=LEAST_TAIL).log()


def _check(policy_TV: Tensor, reference_TV: Tensor) -> None:
    require_same_axes(policy_logprobs=policy_TV, reference_logprobs=reference_TV)
    if policy_TV.dim() < 2:
        raise WrongColumn(
            f"policy_logprobs has the axes {tuple(policy_TV.shape)}; the full divergence needs a"
            " distribution, (T, V) or (T, K)"
        )
