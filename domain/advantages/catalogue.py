"""The advantage estimators by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hexpo.domain.advantages.baselines import gpg, opo, remax, rloo
from hexpo.domain.advantages.distillation import distillation, task_and_distillation
from hexpo.domain.advantages.gae import gae, vapo
from hexpo.domain.advantages.gdpo import gdpo
from hexpo.domain.advantages.grpo import grpo, grpo_passk, maxrl
from hexpo.domain.advantages.moving import rae
from hexpo.domain.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline
from hexpo.domain.advantages.token_baseline import (
    optimal_token_baseline,
    tir_optimal_token_baseline,
)
from hexpo.domain.catalogue import Elsewhere, Entry, by_name, find
from hexpo.domain.estimators import Estimator
from hexpo.domain.reading import Reading

CRITIC = frozenset({"critic"})
TEACHER = frozenset({"teacher"})
SQUARES = frozenset({"sum of squared probabilities"})

ADVANTAGES = by_name(
    Entry(name="gae", function=gae, needs=CRITIC),
    Entry(name="vapo", function=vapo, needs=CRITIC),
    Entry(name="grpo", function=grpo, min_samples=2),
    Entry(name="grpo_passk", function=grpo_passk, min_samples=2),
    Entry(
        name="gdpo",
        function=gdpo,
        min_samples=2,
        needs=frozenset({"reward components"}),
        wide=frozenset({"components"}),
    ),
    Entry(name="maxrl", function=maxrl, min_samples=2),
    Entry(name="rloo", function=rloo, min_samples=2),
    Entry(name="opo", function=opo, min_samples=2),
    Entry(name="gpg", function=gpg, min_samples=2),
    Entry(name="remax", function=remax, needs=frozenset({"greedy baseline"})),
    Entry(name="rae", function=rae, needs=frozenset({"role"})),
    Entry(name="reinforce_plus_plus", function=reinforce_plus_plus),
    Entry(
        name="reinforce_plus_plus_baseline", function=reinforce_plus_plus_baseline, min_samples=2
    ),
    Entry(
        name="optimal_token_baseline",
        function=optimal_token_baseline,
        min_samples=2,
        needs=SQUARES,
    ),
    Entry(
        name="tir_optimal_token_baseline",
        function=tir_optimal_token_baseline,
        min_samples=2,
        needs=SQUARES,
    ),
    Entry(name="distillation", function=distillation, needs=TEACHER),
    Entry(name="task_and_distillation", function=task_and_distillation, needs=TEACHER),
)
"""Every estimator: what a run must provide for it, and from how many samples it means something."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "dr_grpo": Elsewhere(
            hint="it is grpo with scale none, and the loss aggregated by seq-mean-token-sum-norm"
        ),
        "grpo_vectorized": Elsewhere(hint="it is grpo", means="grpo"),
        "rloo_vectorized": Elsewhere(hint="it is rloo", means="rloo"),
        "reinforce": Elsewhere(
            hint="it is reinforce_plus_plus with whitened false, or grpo with scale none"
        ),
    }
)
"""Names of other libraries."""


def estimator(
    name: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> Estimator:
    """An advantage estimator by its name in the configuration.

    Args: options: of the function, checked here.
        columns: columns to read in another's place: {"group": "proposal"} compares the rows of
            one proposal, {"old": "behaviour"} needs no scoring pass.
    Raises: WrongValue: an unknown name, option, value or column, with the nearest valid ones.
    """
    entry = find(name, ADVANTAGES, what="advantage estimator", elsewhere=ELSEWHERE)
    entry.check(options)
    function = Reading(entry.function, dict(columns)) if columns else entry.function
    return Estimator(function=function, options=dict(options), min_samples=entry.min_samples)
