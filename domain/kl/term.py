"""The KL to a target policy as a term of the objective."""

from __future__ import annotations

from enum import Enum

from torch import Tensor

from hexpo.domain.catalogue import did_you_mean
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl.catalogue import kl_estimator
from hexpo.domain.kl.estimates import capped
from hexpo.domain.kl.estimator import KLEstimator
from hexpo.domain.kl.full import full, full_measures, full_top_k, full_top_k_measures
from hexpo.domain.objective import Loss
from hexpo.domain.reading import Reading

K3 = kl_estimator("k3")


class Target(Enum):
    """Which policy a KL term draws to."""

    REFERENCE = "reference"
    """The model before training, or what was put in its place."""
    OLD = "old"
    """The proximal policy."""
    BEHAVIOUR = "behaviour"
    """The policy that sampled."""
    TEACHER = "teacher"
    """The row's teacher."""

    @classmethod
    def _missing_(cls, value: object) -> Target:
        raise WrongValue(
            f"unknown KL target {value!r}{did_you_mean(str(value), [t.value for t in cls])}"
        )


def kl_term(*, policy_T: Tensor, reference_T: Tensor, estimator: KLEstimator = K3) -> Tensor:
    """An estimate of KL(policy || reference), a term a trained token; not averaged.

    the estimator's value and gradient; see the KL estimators

    Args: (T,) each, floating, trained tokens only; log-probs of the taken token in nats, the
            first carries gradient.
    Returns: (T,), in the dtype of `policy_T`.
    Raises: WrongColumn: axes disagree.
    Source: Schulman 2020, "Approximating KL divergence"; Shao et al. 2024 (2402.03300).
    """
    return estimator.function(policy_T=policy_T, reference_T=reference_T)


def unbiased_kl_term(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    behaviour_T: Tensor,
    estimator: KLEstimator = K3,
) -> Tensor:
    """`kl_term` with the importance weight: the gradient of the reverse KL off-policy too.

    w x, w = exp(policy - behaviour), x the estimate; w carries gradient for k1 and k3 only

    Args: as for `kl_term`; behaviour_T: (T,) log-prob under the policy that sampled the token.
    Returns: (T,), in the dtype of `policy_T`.
    Raises: WrongColumn: axes disagree.
    Source: DeepSeek-V3.2, 2025 (2512.02556), for k3; the others by enumeration.
    """
    terms_T = kl_term(policy_T=policy_T, reference_T=reference_T, estimator=estimator)
    return estimator.weigh(terms_T, policy_T=policy_T, sampler_T=behaviour_T)


def kl_measures(
    *, policy_T: Tensor, reference_T: Tensor, estimator: KLEstimator = K3
) -> dict[str, Tensor]:
    """(T,) each: the estimate itself, unweighted, and which tokens its cap holds."""
    measured = {
        "kl": kl_term(policy_T=policy_T, reference_T=reference_T, estimator=estimator).detach()
    }
    if estimator.name in {"k3", "k3+"}:
        held_T = capped(policy_T=policy_T, reference_T=reference_T)
        measured["kl_capped_share"] = held_T.to(policy_T.dtype)
    return measured


def unbiased_kl_measures(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    behaviour_T: Tensor,
    estimator: KLEstimator = K3,
) -> dict[str, Tensor]:
    """(T,) each: as `kl_measures`."""
    return kl_measures(policy_T=policy_T, reference_T=reference_T, estimator=estimator)


def kl_loss(
    name: str,
    *,
    unbiased: bool = False,
    target: Target = Target.REFERENCE,
    sampler: str = "behaviour",
) -> Loss:
    """The loss of a KL term, for `Objective`.

    Args: name: of a KL estimator. unbiased: see `kl_estimator`.
        target: the policy to draw to. sampler: the column of the policy that sampled.
    Raises: WrongValue: see `kl_estimator`; or an unknown target.
    """
    estimator, column = kl_estimator(name, unbiased=unbiased), Target(target).value
    if estimator.is_full:
        return _full_loss(estimator.name, column)
    options = {"estimator": estimator}
    renamed = {} if column == "reference" else {"reference": column}
    if not unbiased:
        if not renamed:
            return Loss(function=kl_term, options=options, measures=kl_measures)
        return Loss(
            function=Reading(kl_term, renamed),
            options=options,
            measures=Reading(kl_measures, renamed),
        )
    if sampler != "behaviour":
        renamed = {**renamed, "behaviour": sampler}
    return Loss(
        function=Reading(unbiased_kl_term, renamed),
        options=options,
        measures=Reading(unbiased_kl_measures, renamed),
    )


def _full_loss(name: str, column: str) -> Loss:
    """The divergence of distributions; of kept ids, those of the target."""
    whole = name == "full"
    function = full if whole else full_top_k
    measures = full_measures if whole else full_top_k_measures
    if column == "reference":
        return Loss(function=function, measures=measures)
    kept = "policy_topk" if column == "teacher" else f"policy_{column}_topk"
    columns = (
        {"reference_logprobs": f"{column}_logprobs"}
        if whole
        else {"policy_reference_topk": kept, "reference_topk": f"{column}_topk"}
    )
    return Loss(function=Reading(function, columns), measures=Reading(measures, columns))
