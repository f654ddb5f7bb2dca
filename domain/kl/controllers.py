"""Coefficients that move from step to step: values that give the next one."""

from __future__ import annotations

import attrs

from hexpo.domain.checks import require_above, require_at_least


@attrs.frozen(kw_only=True)
class FixedKL:
    """A coefficient that stays."""

    coefficient: float

    def after(self, *, kl: float | None, sequences: int) -> FixedKL:
        """The same."""
        return self


@attrs.frozen(kw_only=True)
class AdaptiveKL:
    """A coefficient that holds the KL near a target.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), n the sequences trained

    Source: Ziegler et al. 2019 (1909.08593).
    """

    coefficient: float
    target: float
    """KL of a token, in nats, as the estimator of the run measures it."""
    horizon: float = 10_000.0
    """Sequences in which the coefficient can change by a fifth."""

    def __attrs_post_init__(self) -> None:
        require_at_least(0.0, coefficient=self.coefficient)
        require_above(0.0, target=self.target, horizon=self.horizon)

    def after(self, *, kl: float | None, sequences: int) -> AdaptiveKL:
        """The coefficient for the next step.

        Args: kl: mean of the step; None where nothing was trained, which changes nothing.
            sequences: trained in the step.
        """
        if kl is None:
            return self
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        factor = max(0.0, 1 + error * sequences / self.horizon)
        return attrs.evolve(self, coefficient=self.coefficient * factor)


@attrs.frozen(kw_only=True)
class AdaptiveEntropy:
    """An entropy coefficient that moves by a step towards a target.

    c <- c + step where the entropy is under the target, else c - step, within its bounds

    Source: He et al. 2025, Skywork-OR1 (2505.22312).
    """

    coefficient: float = 0.0
    target: float
    """Mean entropy of a trained token, in nats, over the whole optimizer step."""
    step: float = 0.005
    lowest: float = 0.0
    highest: float = 1.0

    def __attrs_post_init__(self) -> None:
        require_above(0.0, target=self.target, step=self.step)
        require_at_least(self.lowest, highest=self.highest)

    def after(self, *, entropy: float | None) -> AdaptiveEntropy:
        """The coefficient for the next step; None, where nothing was trained, changes nothing."""
        if entropy is None:
            return self
        moved = self.coefficient + (self.step if entropy < self.target else -self.step)
        return attrs.evolve(self, coefficient=min(max(moved, self.lowest), self.highest))
