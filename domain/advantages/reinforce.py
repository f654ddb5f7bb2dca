"""REINFORCE++: returns without a critic, whitened over the step."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.advantages.packed import Actions
from hexpo.domain.advantages.whitening import Total, alone, whiten, whiten_slots
from hexpo.domain.checks import require_floating, require_within


def reinforce_plus_plus(
    *,
    reward_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    scored_S: Tensor,
    gamma: float = 1.0,
    whitened: bool = True,
    total: Total = alone,
) -> dict[str, Tensor]:
    """Reward-to-go over action tokens, whitened over the step.

    G_t = r_t + gamma G_t', t' the next action token of the row; A = whitened G

    Args: reward_T: (T,) float32. action_T: (T,) bool; other tokens are passed over, undiscounted.
        owner_T: (T,) int64, the place of each token's row. scored_S: (S,) bool.
        gamma: discount for each action token, in 0 to 1. whitened: False leaves A = G.
        total: adds the sums of whitening over the parts of the step.
    Returns: `advantage` and `return`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes or dtypes disagree. WrongValue: gamma is out of range.
    Source: Hu 2025 (2501.03262).
    """
    require_within(0.0, 1.0, gamma=gamma)
    require_floating(reward=reward_T)
    actions = Actions.of(action_T=action_T, owner_T=owner_T, scored_S=scored_S)
    return_BW = actions.suffix_sums(actions.take(reward_T), decay=gamma)
    return_T = actions.put(return_BW)
    if whitened:
        return_BW = whiten_slots(return_BW, tokens=actions.count_S.sum(), total=total)
    return {"advantage": actions.put(return_BW), "return": return_T}


def reinforce_plus_plus_baseline(
    *, score_S: Tensor, scored_S: Tensor, group_S: Tensor, actions_S: Tensor
) -> Tensor:
    """The deviation from the group's mean, whitened over the action tokens of the step.

    A = whitened (R - mu); each row counts with its action tokens

    Args: score_S: (S,) outcomes. scored_S: (S,) bool. group_S: (S,) int64.
        actions_S: (S,) int64, action tokens of each row.
    Returns: (S,) float32; 0 for rows without a score.
    Source: Hu 2025 (2501.03262).
    """
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    counts_S = actions_S.masked_fill(~scored_S, 0)
    return whiten(groups.centred(score_S), counts=counts_S).float()
