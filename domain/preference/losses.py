"""Preference losses on pairs of rows; one number a pair, by ascending group.

Sums and means run over the tokens of the term's mask: the answer's. Arguments of all:
`policy_T` (T,) log-probs in nats, carries gradient; `reference_T` (T,) the reference's;
`owner_T` (T,) int64, the place of each token's row; `group_S` (S,) int64, what two rows share;
`chosen_S` (S,) bool. All return (P,), and raise WrongColumn where axes disagree or rows are no
pairs, WrongValue where an option is out of range.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from hexpo.domain.checks import (
    require_above,
    require_at_least,
    require_same_axes,
    require_within,
)
from hexpo.domain.preference.pairs import split_pairs
from hexpo.domain.ragged import row_lasts, row_means, row_sums

_NEAREST = 1e-6
"""How near to 0 a mean log-prob may come in log-odds, in nats."""


def dpo(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Direct preference optimisation.

    -logsigmoid(beta h), h = sum(policy - reference) of the chosen - that of the rejected

    Args: see the module; beta: larger than 0. label_smoothing: how often the label is wrong, in
            [0, 1/2].
    Source: Rafailov et al. 2023 (2305.18290), eq. 7; label smoothing: Mitchell 2023, cDPO.
    """
    require_same_axes(policy=policy_T, reference=reference_T, owner=owner_T)
    require_above(0.0, beta=beta)
    require_within(0.0, 0.5, label_smoothing=label_smoothing)
    log_ratio_S = row_sums(policy_T - reference_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(log_ratio_S, group_S, chosen_S)
    margin_P = beta * (chosen_P - rejected_P)
    right_P, wrong_P = logsigmoid(margin_P), logsigmoid(-margin_P)
    return -(1 - label_smoothing) * right_P - label_smoothing * wrong_P


def ipo(
    *,
    policy_T: Tensor,
    reference_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """Identity preference optimisation: a margin to reach, not to exceed.

    (h - 1 / (2 beta))^2, h = mean(policy - reference) of the chosen - that of the rejected

    Args: see the module; beta: larger than 0.
    Source: Azar et al. 2023 (2310.12036), eq. 17; means over tokens as in TRL.
    """
    require_same_axes(policy=policy_T, reference=reference_T, owner=owner_T)
    require_above(0.0, beta=beta)
    log_ratio_S = row_means(policy_T - reference_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(log_ratio_S, group_S, chosen_S)
    return (chosen_P - rejected_P - 1 / (2 * beta)).square()


def simpo(
    *,
    policy_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> Tensor:
    """Simple preference optimisation: no reference, a target margin.

    -logsigmoid(beta (mean policy of the chosen - that of the rejected) - gamma)

    Args: see the module; beta: larger than 0. gamma: the margin, not negative.
    Source: Meng et al. 2024 (2405.14734), eq. 6.
    """
    require_same_axes(policy=policy_T, owner=owner_T)
    require_above(0.0, beta=beta)
    require_at_least(0.0, gamma=gamma)
    mean_S = row_means(policy_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(mean_S, group_S, chosen_S)
    return -logsigmoid(beta * (chosen_P - rejected_P) - gamma)


def orpo(
    *,
    policy_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    weight: float = 0.1,
) -> Tensor:
    """Odds-ratio preference optimisation: likelihood of the chosen, and odds of the pair.

    -mean policy of the chosen - weight logsigmoid(o of the chosen - o of the rejected),
    o = m - ln(1 - exp(m)), m = mean policy

    Args: see the module; weight: not negative.
    Source: Hong et al. 2024 (2403.07691), eq. 6.
    """
    require_same_axes(policy=policy_T, owner=owner_T)
    require_at_least(0.0, weight=weight)
    mean_S = row_means(policy_T, owner_T, rows=group_S.shape[0])
    held_S = mean_S.clamp(max=-_NEAREST)
    odds_S = held_S - (-held_S.expm1()).log()
    chosen_P, _ = split_pairs(mean_S, group_S, chosen_S)
    better_P, worse_P = split_pairs(odds_S, group_S, chosen_S)
    return -chosen_P - weight * logsigmoid(better_P - worse_P)


def bradley_terry(
    *,
    prediction_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    margin: float = 0.0,
) -> Tensor:
    """The likelihood of a reward model: a row's score is the prediction at its last token.

    -logsigmoid(score of the chosen - score of the rejected - margin)

    Args: see the module; prediction_T: (T,) the model's scalar at each token, carries gradient.
    Source: Bradley and Terry 1952; Ouyang et al. 2022 (2203.02155), eq. 1.
    """
    require_same_axes(prediction=prediction_T, owner=owner_T)
    score_S = row_lasts(prediction_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(score_S, group_S, chosen_S)
    return -logsigmoid(chosen_P - rejected_P - margin)


def score_measures(
    *,
    prediction_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    margin: float = 0.0,
) -> dict[str, Tensor]:
    """(P,) each: the scores, and how often the chosen one's is larger; a tie counts half."""
    score_S = row_lasts(prediction_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(score_S, group_S, chosen_S)
    return {
        "chosen": chosen_P,
        "rejected": rejected_P,
        "accuracy": ((chosen_P - rejected_P).sign() + 1) / 2,
    }


def pair_measures(
    *,
    policy_T: Tensor,
    owner_T: Tensor,
    group_S: Tensor,
    chosen_S: Tensor,
    reference_T: Tensor | None = None,
    **_: float,
) -> dict[str, Tensor]:
    """(P,) each: log-ratios (log-probs without a reference) and how often the chosen one wins."""
    gained_T = policy_T if reference_T is None else policy_T - reference_T
    gained_S = row_sums(gained_T, owner_T, rows=group_S.shape[0])
    chosen_P, rejected_P = split_pairs(gained_S, group_S, chosen_S)
    return {
        "chosen": chosen_P,
        "rejected": rejected_P,
        "accuracy": (chosen_P > rejected_P).to(chosen_P.dtype),
    }
