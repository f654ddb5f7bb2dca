"""On-policy distillation as an advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.checks import require_same_axes


def distillation(*, teacher_T: Tensor, old_T: Tensor, action_T: Tensor) -> dict[str, Tensor]:
    """Minus the estimate of the reverse KL to the row's teacher at the sampled token.

    A = teacher - old

    A row needs no score. In bypass mode, and where a batch makes one optimizer step, `old` is
    `behaviour`: read that column in its place (`estimator(..., columns={"old": "behaviour"})`).

    Args: teacher_T: (T,) log-prob under the row's teacher, nats; NaN where it gave none: such a
            token gets 0. old_T: (T,) log-prob under the proximal policy, nats.
        action_T: (T,) bool.
    Returns: `advantage`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes disagree.
    Source: Agarwal et al. 2023 (2306.13649); Lu et al. 2025 (on-policy distillation).
    """
    require_same_axes(teacher=teacher_T, old=old_T, action=action_T)
    gap_T = teacher_T.float() - old_T.float()
    return {"advantage": torch.where(action_T & gap_T.isfinite(), gap_T, 0.0)}


def task_and_distillation(
    *,
    advantage_S: Tensor,
    teacher_T: Tensor,
    old_T: Tensor,
    action_T: Tensor,
    owner_T: Tensor,
    task: str = "grpo",
    coefficient: float = 1.0,
) -> dict[str, Tensor]:
    """The task's advantage of the row, and the distillation advantage of the token.

    A = A_task + coefficient (teacher - old)

    Args: advantage_S: (S,) of an outcome estimator that ran before. owner_T: (T,) int64, the place
        of each token's row. task: name of that estimator, which the run looks up. Others: as for
        `distillation`.
    Returns: `advantage`, (T,) float32, exactly 0 at other tokens.
    Raises: WrongColumn: axes disagree.
    Source: Lu et al. 2025 (on-policy distillation).
    """
    teaching = distillation(teacher_T=teacher_T, old_T=old_T, action_T=action_T)
    task_T = torch.where(action_T, advantage_S[owner_T].float(), 0.0)
    return {"advantage": task_T + coefficient * teaching["advantage"]}
