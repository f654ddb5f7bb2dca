"""A chosen KL estimator, as a value."""

from __future__ import annotations

from enum import Enum

import attrs
from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.kl.estimates import Estimate

BOUND = 20.0
"""Largest size of an importance weight's exponent, in nats."""


class Weighting(Enum):
    """How the importance weight w = exp(policy - sampler) enters an estimate."""

    NONE = "none"
    """Not at all: right where the policy itself sampled the tokens."""
    DIFFERENTIATED = "differentiated"
    """w x, the gradient through both."""
    CONSTANT = "constant"
    """sg(w) x: a differentiated weight would give another gradient, on-policy too."""


@attrs.frozen(kw_only=True)
class KLEstimator:
    """An estimate of KL(policy || reference); build it with `kl_estimator`."""

    name: str
    function: Estimate
    weighting: Weighting = Weighting.NONE

    @property
    def is_unbiased(self) -> bool:
        """Whether it needs the log-probs of the policy that sampled."""
        return self.weighting is not Weighting.NONE

    @property
    def is_full(self) -> bool:
        """Whether it reads distributions in place of the taken token's log-probs."""
        return self.name in {"full", "full_top_k"}

    def weigh(self, terms_T: Tensor, *, policy_T: Tensor, sampler_T: Tensor) -> Tensor:
        """(T,) the terms times w = exp(policy - sampler), its exponent bounded to +-20.

        Args: sampler_T: (T,) log-prob under the policy that sampled the token, nats.
        """
        require_same_axes(policy=policy_T, sampler=sampler_T)
        weight_T = (policy_T - sampler_T).clamp(-BOUND, BOUND).exp()
        if self.weighting is Weighting.CONSTANT:
            weight_T = weight_T.detach()
        return weight_T * terms_T
