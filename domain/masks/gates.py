"""Gates that read the current policy: they zero numerators and never change a count."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_at_least, require_same_axes
from hexpo.domain.ragged import row_means


def off_policy_sequence(
    *,
    policy_T: Tensor,
    behaviour_T: Tensor,
    owner_T: Tensor,
    advantage_S: Tensor,
    delta: float = 0.1,
) -> Tensor:
    """Drop a row that did badly and has become unlikely; a factor, 0 or 1 a token.

    0 if A < 0 and mean_t(behaviour - sg(policy)) > delta, else 1

    Args: (T,) trained tokens, log-probs in nats; `owner_T` int64, the place of each token's row in
            `advantage_S` (S,). delta: nats a token, not negative.
    Returns: (T,) without gradient.
    Raises: WrongColumn: axes disagree. WrongValue: delta is negative.
    Source: DeepSeek-V3.2 2025 (2512.02556), off-policy sequence masking.
    """
    require_same_axes(policy=policy_T, behaviour=behaviour_T, owner=owner_T)
    require_at_least(0.0, delta=delta)
    gone_T = behaviour_T - policy_T.detach()
    gone_S = row_means(gone_T, owner_T, rows=advantage_S.shape[0])
    stays_S = ~((advantage_S < 0) & (gone_S > delta))
    return stays_S.to(policy_T.dtype)[owner_T]
