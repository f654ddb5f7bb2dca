"""Likelihood terms: supervised tokens, observations, and the multi-token head."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_same_axes

OBSERVATION = "observation"
"""Tokens that the policy read in later turns and a term may learn, and how many a row has."""


def nll(*, policy_T: Tensor) -> Tensor:
    """Supervised fine-tuning: minus the log-prob; a term a token of the term's mask.

    -policy

    Args: policy_T: (T,) nats, carries gradient.
    Returns: (T,).
    Source: maximum likelihood; the mask is the assistant's tokens.
    """
    return -policy_T


def nll_measures(*, policy_T: Tensor) -> dict[str, Tensor]:
    """(T,): the mean probability of the target tokens."""
    return {"probability": policy_T.exp()}


def observation_nll(*, policy_T: Tensor, observation_weight_T: Tensor) -> Tensor:
    """The likelihood of tool and user tokens of later turns; a term an observed token.

    -w policy, w the weight of the token's role

    Args: policy_T: (T,) nats, carries gradient; of tokens that the policy did not choose.
        observation_weight_T: (T,) the weight of each token's role, a constant.
    Returns: (T,). The term has a mask and a denominator of its own.
    Raises: WrongColumn: axes disagree.
    Source: ECHO, see docs/algorithms.md.
    """
    require_same_axes(policy=policy_T, observation_weight=observation_weight_T)
    return -observation_weight_T.detach() * policy_T


def mtp(*, mtp_T: Tensor) -> Tensor:
    """The auxiliary loss of multi-token-prediction heads; a term a token of the term's mask.

    -mean over the heads of the log-prob that each gives to the token that it is to predict

    Args: mtp_T: (T,) nats, the mean of the heads' log-probs, carries gradient; a head that has too
            few tokens before this one adds 0 to the sum and counts.
    Returns: (T,).
    Source: Gloeckle et al. 2024 (2404.19737); DeepSeek-V3 2024 (2412.19437), section 2.2.
    """
    return -mtp_T
