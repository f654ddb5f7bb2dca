"""VESPO: a smooth weight on the ratio of a whole row."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_at_least, require_same_axes
from hexpo.domain.losses.ratio import sequence_ratio


def vespo(
    *,
    policy_T: Tensor,
    old_T: Tensor,
    owner_T: Tensor,
    advantage_T: Tensor,
    length_S: Tensor,
    power_positive: float = 2.0,
    decay_positive: float = 3.0,
    power_negative: float = 3.0,
    decay_negative: float = 2.0,
) -> Tensor:
    """A smooth weight on the ratio of the whole row instead of a clip; a term a trained token.

    -sg(phi(w)) A policy, w = exp(sum_t(policy - old)), phi(w) = w^k exp(lam (1 - w)), phi(1) = 1

    Args: (T,) trained tokens; `length_S` (S,) tells the number of rows only. log w is bounded to
            [ln 1e-8, 20].
        power_*, decay_*: k and lam for A >= 0 and for A < 0; not negative.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: an option is out of range.
    Source: VESPO 2026 (2602.10693).
    """
    require_same_axes(policy=policy_T, old=old_T, owner=owner_T, advantage=advantage_T)
    require_at_least(0.0, power_positive=power_positive, power_negative=power_negative)
    require_at_least(0.0, decay_positive=decay_positive, decay_negative=decay_negative)
    ratio_S = sequence_ratio(policy_T.detach(), old_T, owner_T, rows=length_S.shape[0])
    ratio_T = ratio_S.clamp(min=1e-8)[owner_T]
    good_T = advantage_T >= 0
    power_T = torch.where(good_T, power_positive, power_negative).to(ratio_T.dtype)
    decay_T = torch.where(good_T, decay_positive, decay_negative).to(ratio_T.dtype)
    weight_T = (power_T * ratio_T.log() + decay_T * (1 - ratio_T)).exp()
    return -weight_T * advantage_T * policy_T
