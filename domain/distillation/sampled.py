"""Distillation from the sampled token alone."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.kl.catalogue import kl_estimator


def sampled(*, policy_T: Tensor, teacher_T: Tensor, estimator: str = "k2") -> Tensor:
    """An estimate of KL(policy || teacher) from the sampled token; a term a trained token.

    the KL estimator with the teacher as reference, d = policy - teacher

    Args: (T,) log-probs of the taken token in nats; the first carries gradient. estimator: a KL
            estimator's name; on-policy k2 and the names with a plus have the reverse KL's gradient.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an unknown name.
    Source: Agarwal et al. 2023 (2306.13649); Lu et al. 2025, on-policy distillation.
    """
    estimate = kl_estimator(estimator)
    return estimate.function(policy_T=policy_T, reference_T=teacher_T.detach())


def sampled_measures(
    *, policy_T: Tensor, teacher_T: Tensor, estimator: str = "k2"
) -> dict[str, Tensor]:
    """(T,) each: the log-ratio, whose mean estimates the KL, and the estimate itself."""
    value_T = sampled(policy_T=policy_T, teacher_T=teacher_T, estimator=estimator)
    return {"log_ratio": policy_T - teacher_T, "estimate": value_T}
