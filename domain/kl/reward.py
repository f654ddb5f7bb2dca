"""The KL to the reference as a part of the reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.errors import WrongValue
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.estimator import KLEstimator
from hexpo.domain.metrics import Measure, mean_of
from hexpo.domain.ragged import row_sums
from hexpo.domain.signature import Needs, needs_of

_ROLES = ("trained_T", "action_T", "owner_T", "scored_S")


def token_kl(
    *, policy_T: Tensor, reference_T: Tensor, mask_T: Tensor, estimator: KLEstimator
) -> Tensor:
    """The estimate at the mask's tokens, without gradient; exactly 0 at every other token.

    Args: policy_T, reference_T: (T,) log-probs of the taken token, nats. mask_T: (T,) bool.
    Returns: (T,) float32.
    """
    with torch.no_grad():
        kl_T = estimator.function(policy_T=policy_T, reference_T=reference_T).float()
    return torch.where(mask_T, kl_T, 0.0)  # selects: what else stands there is never used


def mean_kl(kl_T: Tensor, *, mask_T: Tensor) -> Measure:
    """The mean over the mask's tokens, for a controller. Args: kl_T: what `token_kl` gave."""
    return mean_of(float(kl_T.sum(dtype=torch.float64)), float(mask_T.sum()))


@attrs.frozen(kw_only=True)
class KLInReward:
    """An advantage estimator that sees rewards with the KL taken off.

    r_t <- r_t - coefficient KL_t at trained tokens, so that no KL comes from tool tokens, nor from
    an action whose log-prob is invalid; an outcome estimator sees R less the coefficient times
    the row's sum of KL, and its advantage is spread over the action tokens. The outcome that was
    graded stays as it is in its column (B10).
    """

    function: Callable[..., Tensor | Mapping[str, Tensor]]
    """The advantage estimator."""
    coefficient: float
    estimator: KLEstimator
    policy: str = "behaviour"
    """Column with the policy's log-probs: `behaviour`, or `old` where a scoring pass is run."""
    reference: str = "reference"
    """Column with the log-probs of the policy to stay near to."""

    def __attrs_post_init__(self) -> None:
        if self.estimator.is_full or self.estimator.is_unbiased:
            option = " with unbiased" if self.estimator.is_unbiased else ""
            raise WrongValue(
                f"KL in the reward takes log-probs of the taken token, and no weight:"
                f" {self.estimator.name}{option} is for the loss"
            )
        if not {"reward", "score"} & set(self._own.tokens + self._own.sequences):
            raise WrongValue("KL in the reward: this estimator reads no reward; use KL in the loss")

    @property
    def _own(self) -> Needs:
        return needs_of(self.function)

    @property
    def _columns(self) -> tuple[str, ...]:
        return (f"{self.policy}_T", f"{self.reference}_T", *_ROLES)

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.function)
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = {name: inspect.Parameter(name, keyword) for name in self._columns}
        # An option, so that a controller may move it from step to step.
        added["kl_coefficient"] = inspect.Parameter(
            "kl_coefficient", keyword, default=self.coefficient
        )
        return signature.replace(parameters=list({**signature.parameters, **added}.values()))

    def __call__(self, **arguments: Any) -> Mapping[str, Tensor]:
        action_T, owner_T = arguments["action_T"], arguments["owner_T"]
        coefficient = arguments.pop("kl_coefficient", self.coefficient)
        kl_T = token_kl(
            policy_T=arguments[f"{self.policy}_T"],
            reference_T=arguments[f"{self.reference}_T"],
            mask_T=arguments["trained_T"],
            estimator=self.estimator,
        )
        if "reward_T" in arguments:
            arguments["reward_T"] = arguments["reward_T"] - coefficient * kl_T
        if "score_S" in arguments:
            score_S = arguments["score_S"].double()
            kl_S = row_sums(kl_T.double(), owner_T, rows=score_S.shape[0])
            arguments["score_S"] = score_S - coefficient * kl_S
        taken = inspect.signature(self.function).parameters
        result = self.function(**{name: arguments[name] for name in taken if name in arguments})
        if isinstance(result, Mapping):
            return result
        return {"advantage": torch.where(action_T, result[owner_T], 0.0)}


def with_kl_in_reward(
    estimator: Estimator,
    kl: KLEstimator,
    *,
    coefficient: float,
    policy: str = "behaviour",
    reference: str = "reference",
) -> Estimator:
    """The estimator with KL in its rewards; it reads tokens, so it runs where the rows lie.

    Raises: WrongValue: the estimator reads no reward, or the KL has no form for a reward.
    """
    function = KLInReward(
        function=estimator.function,
        coefficient=coefficient,
        estimator=kl,
        policy=policy,
        reference=reference,
    )
    return attrs.evolve(estimator, function=function)
