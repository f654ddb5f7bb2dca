"""KL divergence to another policy: estimators, the loss term, the reward, and controllers."""

from hexpo.domain.kl.catalogue import ELSEWHERE, KL_ESTIMATORS, WEIGHTINGS, kl_estimator
from hexpo.domain.kl.controllers import AdaptiveEntropy, AdaptiveKL, FixedKL
from hexpo.domain.kl.estimates import absolute, absolute_plus, capped, k1, k1_plus, k2, k3, k3_plus
from hexpo.domain.kl.estimator import KLEstimator, Weighting
from hexpo.domain.kl.full import full, full_top_k
from hexpo.domain.kl.reward import KLInReward, mean_kl, token_kl, with_kl_in_reward
from hexpo.domain.kl.term import Target, kl_loss, kl_measures, kl_term, unbiased_kl_term

__all__ = [
    "ELSEWHERE",
    "KL_ESTIMATORS",
    "WEIGHTINGS",
    "AdaptiveEntropy",
    "AdaptiveKL",
    "FixedKL",
    "KLEstimator",
    "KLInReward",
    "Target",
    "Weighting",
    "absolute",
    "absolute_plus",
    "capped",
    "full",
    "full_top_k",
    "k1",
    "k1_plus",
    "k2",
    "k3",
    "k3_plus",
    "kl_estimator",
    "kl_loss",
    "kl_measures",
    "kl_term",
    "mean_kl",
    "token_kl",
    "unbiased_kl_term",
    "with_kl_in_reward",
]
