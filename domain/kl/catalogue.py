"""The KL estimators by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.catalogue import Elsewhere, Entry, by_name, find
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl.controllers import AdaptiveEntropy, AdaptiveKL
from hexpo.domain.kl.estimates import (
    absolute,
    absolute_plus,
    k1,
    k1_plus,
    k2,
    k3,
    k3_plus,
)
from hexpo.domain.kl.estimator import KLEstimator, Weighting
from hexpo.domain.kl.full import full, full_measures, full_top_k, full_top_k_measures

KL_ESTIMATORS = by_name(
    Entry(name="k1", function=k1),
    Entry(name="abs", function=absolute),
    Entry(name="k2", function=k2),
    Entry(name="k3", function=k3),
    Entry(name="k1+", function=k1_plus),
    Entry(name="abs+", function=absolute_plus),
    Entry(name="k3+", function=k3_plus),
    Entry(
        name="full",
        function=full,
        measures=full_measures,
        needs=frozenset({"distributions over the vocabulary"}),
        wide=frozenset({"policy_logprobs", "reference_logprobs"}),
    ),
    Entry(
        name="full_top_k",
        function=full_top_k,
        measures=full_top_k_measures,
        needs=frozenset({"log-probs of the same top-k"}),
        wide=frozenset({"policy_reference_topk", "reference_topk"}),
    ),
)
"""Every estimator; values and gradients stand in the functions' docstrings."""

CONTROLLERS = by_name(
    Entry(name="adaptive_kl", function=AdaptiveKL),
    Entry(name="adaptive_entropy", function=AdaptiveEntropy),
)
"""What moves a coefficient from step to step; without one it is fixed."""

_EXACT = "the full divergence has its exact gradient; use it without the plus"

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "kl": Elsewhere(hint="it is k1", means="k1"),
        "mse": Elsewhere(hint="it is k2", means="k2"),
        "low_var_kl": Elsewhere(hint="it is k3", means="k3"),
        "k2+": Elsewhere(hint="k2 has its own gradient", means="k2"),
        "mse+": Elsewhere(hint="k2 has its own gradient", means="k2"),
        "kl+": Elsewhere(hint="it is k1+", means="k1+"),
        "low_var_kl+": Elsewhere(hint="it is k3+", means="k3+"),
        "full+": Elsewhere(hint=_EXACT),
        "full_top_k+": Elsewhere(hint=_EXACT),
    }
)
"""Other names of the same, and the one that is refused."""

WEIGHTINGS: Mapping[str, Weighting] = MappingProxyType(
    {
        "k1": Weighting.DIFFERENTIATED,
        "k3": Weighting.DIFFERENTIATED,
        "k2": Weighting.CONSTANT,
        "k1+": Weighting.CONSTANT,
        "abs+": Weighting.CONSTANT,
        "k3+": Weighting.CONSTANT,
    }
)
"""How the importance weight enters an unbiased estimate; a missing name has no such form."""


def kl_estimator(name: str, *, unbiased: bool = False) -> KLEstimator:
    """A KL estimator by its name in the configuration, for the reward as for the loss.

    Args: unbiased: weigh by exp(policy - sampler), so that the gradient is the reverse KL's
            off-policy too; the estimator decides whether the weight carries gradient.
    Raises: WrongValue: an unknown name, with the nearest valid ones; or one without an unbiased
        form.
    """
    entry = find(name, KL_ESTIMATORS, what="KL estimator", elsewhere=ELSEWHERE)
    if unbiased and entry.name not in WEIGHTINGS:
        forms = ", ".join(WEIGHTINGS)
        raise WrongValue(f"KL estimator {name!r} has no unbiased form; those that have: {forms}")
    return KLEstimator(
        name=entry.name,
        function=entry.function,
        weighting=WEIGHTINGS[entry.name] if unbiased else Weighting.NONE,
    )
