"""What changes from step to step beside the weights: coefficients and baselines (H2)."""

from __future__ import annotations

import attrs

from hexpo.domain.advantages.moving import Baselines
from hexpo.domain.batch import Sequences
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.controllers import AdaptiveEntropy, AdaptiveKL
from hexpo.domain.metrics import Measure, Metrics, latest
from hexpo.domain.objective import Objective

KL, ENTROPY = "kl", "entropy"
"""Names of the terms whose coefficients can move."""


@attrs.frozen(kw_only=True)
class Moving:
    """A value: each step is made with one, and gives the next one. Part of a checkpoint."""

    kl: AdaptiveKL | None = None
    """Moves the coefficient of the KL, in the loss and in the reward."""
    entropy: AdaptiveEntropy | None = None
    """Moves the coefficient of the entropy bonus."""
    baselines: Baselines = attrs.field(factory=Baselines)
    """Of estimators that compare with earlier steps."""

    @property
    def controls(self) -> bool:
        """Whether a coefficient follows what is measured on *all* rows of a step."""
        return self.kl is not None or self.entropy is not None

    def objective(self, objective: Objective) -> Objective:
        """The objective with the present coefficients. A term of coefficient 0 stays so where only
        the reward has the KL."""
        found = {
            name: one.coefficient
            for name, one in ((KL, self.kl), (ENTROPY, self.entropy))
            if one is not None
        }
        terms = tuple(
            attrs.evolve(term, coefficient=found[term.name])
            if term.name in found and not (term.name == KL and term.coefficient == 0)
            else term
            for term in objective.terms
        )
        return attrs.evolve(objective, terms=terms)

    def estimator(self, estimator: Estimator) -> Estimator:
        """The estimator with what it takes of the present state."""
        takes, options = estimator.needs.options, dict(estimator.options)
        if "baselines" in takes:
            options["baselines"] = self.baselines
        if "kl_coefficient" in takes and self.kl is not None:
            options["kl_coefficient"] = self.kl.coefficient
        return attrs.evolve(estimator, options=options)

    def after(self, rows: Sequences, metrics: Metrics) -> Moving:
        """The state for the next step.

        Args: rows: all of the step. metrics: of the whole step, merged.
        """
        score_S = rows["shaped"] if "shaped" in rows else rows["score"]
        baselines = self.baselines.after(
            score_S=score_S, scored_S=rows["scored"], role_S=rows["role"]
        )
        kl, entropy = self.kl, self.entropy
        if kl is not None:
            trained = int((rows["trained"] > 0).sum())
            kl = kl.after(kl=_value(metrics, "kl/kl"), sequences=trained)
        if entropy is not None:
            entropy = entropy.after(entropy=_value(metrics, "train/entropy"))
        return Moving(kl=kl, entropy=entropy, baselines=baselines)

    def resumed(self, saved: Moving) -> Moving:
        """The saved numbers under the present settings: a new target or horizon holds at once."""
        kl, entropy = self.kl, self.entropy
        if kl is not None and saved.kl is not None:
            kl = attrs.evolve(kl, coefficient=saved.kl.coefficient)
        if entropy is not None and saved.entropy is not None:
            entropy = attrs.evolve(entropy, coefficient=saved.entropy.coefficient)
        return Moving(kl=kl, entropy=entropy, baselines=saved.baselines)

    def metrics(self) -> dict[str, Measure]:
        """The coefficients that move."""
        named = (("coefficient/kl", self.kl), ("coefficient/entropy", self.entropy))
        return {name: latest(one.coefficient) for name, one in named if one is not None}


STILL = Moving()
"""Nothing moves but the baselines."""


def _value(metrics: Metrics, name: str) -> float | None:
    return metrics[name].value if name in metrics else None
