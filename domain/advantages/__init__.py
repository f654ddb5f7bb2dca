"""Advantages: how much better a row, or a token of it, is than what was expected."""

from hexpo.domain.advantages.baselines import gpg, opo, remax, rloo
from hexpo.domain.advantages.catalogue import ADVANTAGES, ELSEWHERE, estimator
from hexpo.domain.advantages.distillation import distillation, task_and_distillation
from hexpo.domain.advantages.gae import gae, vapo
from hexpo.domain.advantages.gdpo import gdpo
from hexpo.domain.advantages.groups import Groups
from hexpo.domain.advantages.grpo import Scale, grpo, grpo_passk, maxrl
from hexpo.domain.advantages.moving import Baselines, rae
from hexpo.domain.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from hexpo.domain.advantages.report import group_report
from hexpo.domain.advantages.token_baseline import (
    optimal_token_baseline,
    tir_optimal_token_baseline,
)
from hexpo.domain.advantages.whitening import whiten

__all__ = [
    "ADVANTAGES",
    "ELSEWHERE",
    "Baselines",
    "Groups",
    "Scale",
    "distillation",
    "estimator",
    "gae",
    "gdpo",
    "gpg",
    "group_report",
    "grpo",
    "grpo_passk",
    "maxrl",
    "opo",
    "optimal_token_baseline",
    "rae",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "task_and_distillation",
    "tir_optimal_token_baseline",
    "vapo",
    "whiten",
]
