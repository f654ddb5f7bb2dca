"""Baselines of each token that minimise the gradient's variance."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.advantages.groups import Groups
from hexpo.domain.advantages.packed import Actions
from hexpo.domain.checks import require_above, require_floating

EPSILON = 1e-8


def optimal_token_baseline(
    *,
    reward_T: Tensor,
    old_T: Tensor,
    behaviour_T: Tensor,
    squares_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    scored_S: Tensor,
    group_S: Tensor,
    truncation: float | None = None,
) -> dict[str, Tensor]:
    """Reward-to-go less a baseline of the group at the same place of the answer.

    G = reward-to-go; W_t = running sum of 1 - 2 p_t + sum p^2 over action tokens, times rho_t^2 if
    corrected; B_t = sum G W / (sum W + 1e-8) over the group's rows with an action at t;
    A = G - B, B = 0 in the longest row beyond the second longest row's count of action tokens

    Places count all tokens from the row's first action on. A group with one scored row gives 0.
    Equal outcomes do not give 0 where only one row is left: that is the estimator.

    Args: reward_T: (T,). old_T: (T,) log-prob of each token under the proximal policy, nats.
        behaviour_T: (T,) the same under the policy that sampled; read if corrected.
        squares_T: (T,) sum of the squared probabilities of the proximal policy's distribution.
        action_T: (T,) bool. owner_T: (T,) int64. scored_S: (S,) bool. group_S: (S,) int64.
        truncation: None for no correction; else the bound on rho = exp(old - behaviour).
    Returns: `advantage` and `return`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes or dtypes disagree. WrongValue: truncation is out of range.
    Source: verl's `optimal_token_baseline`.
    """
    require_floating(reward=reward_T, old=old_T, squares=squares_T)
    actions = Actions.of(action_T=action_T, owner_T=owner_T, scored_S=scored_S)
    place_BW = actions.take(torch.arange(owner_T.shape[0], device=owner_T.device))
    first_S = place_BW.new_full(actions.count_S.shape, owner_T.shape[0])
    first_S = first_S.scatter_reduce(0, actions.row_B[:-1], place_BW[:-1, 0], "amin")
    place_BW = place_BW - first_S[actions.row_B][:, None]
    weight_BW = _weights(actions, old_T, behaviour_T, squares_T, truncation)
    return _subtract(actions, reward_T, weight_BW, place_BW, scored_S=scored_S, group_S=group_S)


def tir_optimal_token_baseline(
    *,
    reward_T: Tensor,
    old_T: Tensor,
    behaviour_T: Tensor,
    squares_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    scored_S: Tensor,
    group_S: Tensor,
    truncation: float | None = None,
) -> dict[str, Tensor]:
    """The optimal token baseline with places that count action tokens only (several turns).

    as optimal_token_baseline, t the number of action tokens of the row before this one

    Args, returns, raises: as for `optimal_token_baseline`.
    Source: verl's `tir_optimal_token_baseline`.
    """
    require_floating(reward=reward_T, old=old_T, squares=squares_T)
    actions = Actions.of(action_T=action_T, owner_T=owner_T, scored_S=scored_S)
    weight_BW = _weights(actions, old_T, behaviour_T, squares_T, truncation)
    place_BW = _running(actions, actions.filled_BW.double()).long() - 1
    return _subtract(actions, reward_T, weight_BW, place_BW, scored_S=scored_S, group_S=group_S)


def _weights(
    actions: Actions,
    old_T: Tensor,
    behaviour_T: Tensor,
    squares_T: Tensor,
    truncation: float | None,
) -> Tensor:
    """(B, W) float64: the running sum W; garbage in empty slots."""
    old_BW = actions.take(old_T).double()
    step_BW = 1 - 2 * old_BW.exp() + actions.take(squares_T).double()
    if truncation is not None:
        require_above(0.0, truncation=truncation)
        rho_BW = (old_BW - actions.take(behaviour_T).double()).exp().clamp(max=truncation)
        step_BW = step_BW * rho_BW.square()
    return _running(actions, step_BW.masked_fill(~actions.filled_BW, 0.0))


def _running(actions: Actions, values_BW: Tensor) -> Tensor:
    """(B, W) the sum over the row's action tokens up to and with each."""
    later_BW = actions.suffix_sums(values_BW, decay=1.0)
    sums_S = values_BW.new_zeros(actions.count_S.shape)
    sums_S = sums_S.index_add(0, actions.row_B, values_BW.sum(1))
    return sums_S[actions.row_B][:, None] - later_BW + values_BW


def _subtract(
    actions: Actions,
    reward_T: Tensor,
    weight_BW: Tensor,
    place_BW: Tensor,
    *,
    scored_S: Tensor,
    group_S: Tensor,
) -> dict[str, Tensor]:
    groups = Groups.of(group_S=group_S, scored_S=scored_S)
    return_BW = actions.suffix_sums(actions.take(reward_T).double(), decay=1.0)
    filled_BW = actions.filled_BW
    place_BW = place_BW.masked_fill(~filled_BW, 0)
    places = int(place_BW.max()) + 1 if place_BW.numel() else 0
    key_N = (groups.place_S[actions.row_B][:, None] * places + place_BW)[filled_BW]
    weight_N, return_N = weight_BW[filled_BW], return_BW[filled_BW]
    empty = weight_N.new_zeros(groups.groups * places)
    above = empty.index_add(0, key_N, return_N * weight_N)
    below = empty.index_add(0, key_N, weight_N)
    baseline_N = above[key_N] / (below[key_N] + EPSILON)
    second_S = _second_longest(groups, actions.count_S)
    beyond_BW = place_BW >= second_S[actions.row_B][:, None]
    beyond_BW &= (actions.count_S > second_S)[actions.row_B][:, None]
    baseline_N = baseline_N.masked_fill(beyond_BW[filled_BW], 0.0)
    alone_BW = (groups.count_S < 2)[actions.row_B][:, None].expand_as(filled_BW)
    advantage_N = (return_N - baseline_N).masked_fill(alone_BW[filled_BW], 0.0)
    advantage_BW = torch.zeros_like(return_BW).masked_scatter(filled_BW, advantage_N)
    return {"advantage": actions.put(advantage_BW), "return": actions.put(return_BW)}


def _second_longest(groups: Groups, count_S: Tensor) -> Tensor:
    """(S,) int64: the second largest count of the row's group; equal to the largest in a tie."""
    longest_G = count_S.new_zeros(groups.groups)
    longest_G = longest_G.scatter_reduce(0, groups.place_S, count_S, "amax")
    is_longest_S = (count_S == longest_G[groups.place_S]) & groups.scored_S
    holders_S = groups.sum(is_longest_S)
    shorter_S = count_S.masked_fill(is_longest_S | ~groups.scored_S, 0)
    second_G = torch.zeros_like(longest_G).scatter_reduce(0, groups.place_S, shorter_S, "amax")
    return torch.where(holders_S > 1, longest_G[groups.place_S], second_G[groups.place_S])
