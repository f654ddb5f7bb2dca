"""Generalised advantage estimation over action tokens."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.advantages.packed import Actions
from hexpo.domain.advantages.whitening import Total, alone, whiten_slots
from hexpo.domain.checks import require_above, require_floating, require_within


def gae(
    *,
    reward_T: Tensor,
    value_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    scored_S: Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
    whitened: bool = True,
    total: Total = alone,
) -> dict[str, Tensor]:
    """Generalised advantage estimation with a critic, over action tokens only.

    d_t = r_t + gamma V_t' - V_t; A_t = d_t + gamma lam A_t', t' the next action token of the row;
    return = A + V, before A is whitened over the action tokens of the step

    Args: reward_T, value_T: (T,) float32, rewards and the critic's values of the states.
        action_T: (T,) bool; what stands at other tokens is not read.
        owner_T: (T,) int64, the place of each token's row; rows lie end to end.
        scored_S: (S,) bool; the tokens of other rows get 0 and enter no statistic.
        gamma, lam: discount and trace decay for each action token, both in 0 to 1.
        whitened: whether advantages get mean 0 and variance 1 over the step.
        total: adds the sums of whitening over the parts of the step.
    Returns: `advantage` and `return`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes or dtypes disagree. WrongValue: gamma or lam is out of range.
    Source: Schulman et al. 2015 (1506.02438).
    """
    require_within(0.0, 1.0, gamma=gamma, lam=lam)
    require_floating(reward=reward_T, value=value_T)
    actions = Actions.of(action_T=action_T, owner_T=owner_T, scored_S=scored_S)
    value_BW = actions.take(value_T)
    delta_BW = _deltas(actions, reward_T, value_BW, gamma=gamma)
    advantage_BW = actions.suffix_sums(delta_BW, decay=gamma * lam)
    del delta_BW  # a column's memory, which the returns take
    return_T = actions.put(value_BW.add_(advantage_BW))
    if whitened:
        advantage_BW = whiten_slots(advantage_BW, tokens=actions.count_S.sum(), total=total)
    return {"advantage": actions.put(advantage_BW), "return": return_T}


def vapo(
    *,
    reward_T: Tensor,
    value_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    scored_S: Tensor,
    gamma: float = 1.0,
    alpha: float = 0.05,
    whitened: bool = True,
    total: Total = alone,
) -> dict[str, Tensor]:
    """GAE with one lambda for the critic and one, that grows with the length, for the policy.

    return: GAE's with lam 1; advantage: GAE's with lam = max(0, 1 - 1 / (alpha L)), L the action
    tokens of the row; whitened over the action tokens of the step

    Args: as for `gae`; alpha: above 0. Rows of up to 1 / alpha action tokens have lam 0.
    Returns: `advantage` and `return`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes or dtypes disagree. WrongValue: gamma or alpha is out of range.
    Source: Yue et al. 2025 (2504.05118).
    """
    require_within(0.0, 1.0, gamma=gamma)
    require_above(0.0, alpha=alpha)
    require_floating(reward=reward_T, value=value_T)
    actions = Actions.of(action_T=action_T, owner_T=owner_T, scored_S=scored_S)
    value_BW = actions.take(value_T)
    delta_BW = _deltas(actions, reward_T, value_BW, gamma=gamma)
    lam_S = (1 - 1 / (alpha * actions.count_S.clamp(min=1))).clamp(min=0.0)
    advantage_BW = actions.suffix_sums(delta_BW, decay=(gamma * lam_S).to(delta_BW.dtype))
    return_BW = actions.suffix_sums(delta_BW, decay=gamma) + value_BW
    if whitened:
        advantage_BW = whiten_slots(advantage_BW, tokens=actions.count_S.sum(), total=total)
    return {"advantage": actions.put(advantage_BW), "return": actions.put(return_BW)}


def _deltas(actions: Actions, reward_T: Tensor, value_BW: Tensor, *, gamma: float) -> Tensor:
    """(B, W) r_t + gamma V_t' - V_t."""
    delta_BW = actions.take(reward_T).sub_(value_BW)
    return actions.add_following_(delta_BW, value_BW, scale=gamma)
