"""Distillation losses on the ids that a teacher (or the student) kept; a term a trained token.

`policy_topk_T` (T, K) is a head statistic: the log-probs that the student gives to the kept ids
now, with their gradient; `teacher_topk_T` (T, K) the teacher's, a constant. With `tail` the rest
of the mass is one more outcome (see `coarse`). Without, the K columns are the whole vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_inside, require_same_axes
from hexpo.domain.distillation.coarse import saturated, with_tail
from hexpo.domain.distillation.divergences import jensen_shannon, kl, skewed, skewed_reverse


def forward_kl(*, policy_topk_T: Tensor, teacher_topk_T: Tensor, tail: bool = True) -> Tensor:
    """Forward KL: the student covers what the teacher does.

    KL(teacher || student)

    Args: (T, K) each, log-probs in nats of the same kept ids, at the temperature of the
            divergence; the first carries gradient. tail: the rest of the mass is one outcome.
    Returns: (T,), in the dtype of `policy_topk_T`.
    Raises: WrongColumn: axes disagree.
    Source: Hinton et al. 2015 (1503.02531); on-policy: Agarwal et al. 2023 (2306.13649).
    """
    teacher, student = _outcomes(teacher_topk_T, policy_topk_T, tail=tail)
    return kl(teacher, student).to(policy_topk_T.dtype)


def reverse_kl(*, policy_topk_T: Tensor, teacher_topk_T: Tensor, tail: bool = True) -> Tensor:
    """Reverse KL: the student keeps to what the teacher does.

    KL(student || teacher)

    Args, Returns and Raises: as `forward_kl`.
    Source: Gu et al. 2023, MiniLLM (2306.08543); Agarwal et al. 2023 (2306.13649).
    """
    teacher, student = _outcomes(teacher_topk_T, policy_topk_T, tail=tail)
    return kl(student, teacher).to(policy_topk_T.dtype)


def jsd(
    *, policy_topk_T: Tensor, teacher_topk_T: Tensor, beta: float = 0.5, tail: bool = True
) -> Tensor:
    """Generalised Jensen-Shannon divergence.

    beta KL(teacher || M) + (1 - beta) KL(student || M), M = beta teacher + (1 - beta) student

    Args: as `forward_kl`; 0 < beta < 1. At the ends the loss vanishes: use `forward_kl` (for
            beta -> 0) or `reverse_kl` (for beta -> 1) by their own names.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: beta is out of range.
    Source: Agarwal et al. 2023 (2306.13649), eq. 1.
    """
    require_inside(0.0, 1.0, beta=beta)
    teacher, student = _outcomes(teacher_topk_T, policy_topk_T, tail=tail)
    return jensen_shannon(teacher, student, beta=beta).to(policy_topk_T.dtype)


def skew_kl(
    *, policy_topk_T: Tensor, teacher_topk_T: Tensor, alpha: float = 0.1, tail: bool = True
) -> Tensor:
    """Skewed forward KL: bounded where the student gives nothing.

    KL(teacher || alpha teacher + (1 - alpha) student)

    Args: as `forward_kl`; 0 < alpha < 1.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: alpha is out of range.
    Source: Ko et al. 2024, DistiLLM (2402.03898).
    """
    require_inside(0.0, 1.0, alpha=alpha)
    teacher, student = _outcomes(teacher_topk_T, policy_topk_T, tail=tail)
    return skewed(teacher, student, alpha=alpha).to(policy_topk_T.dtype)


def skew_reverse_kl(
    *, policy_topk_T: Tensor, teacher_topk_T: Tensor, alpha: float = 0.1, tail: bool = True
) -> Tensor:
    """Skewed reverse KL: bounded where the teacher gives nothing.

    KL(student || (1 - alpha) teacher + alpha student)

    Args: as `forward_kl`; 0 < alpha < 1.
    Returns: (T,). Raises: WrongColumn: axes disagree. WrongValue: alpha is out of range.
    Source: Ko et al. 2024, DistiLLM (2402.03898).
    """
    require_inside(0.0, 1.0, alpha=alpha)
    teacher, student = _outcomes(teacher_topk_T, policy_topk_T, tail=tail)
    return skewed_reverse(teacher, student, alpha=alpha).to(policy_topk_T.dtype)


def topk_measures(
    *, policy_topk_T: Tensor, teacher_topk_T: Tensor, **_: float | bool
) -> dict[str, Tensor]:
    """(T,) each: the mass on kept ids of teacher and student, and where no tail is left."""
    return {
        "teacher_kept_mass": teacher_topk_T.exp().sum(-1),
        "policy_kept_mass": policy_topk_T.exp().sum(-1),
        "saturated_share": saturated(policy_topk_T).to(policy_topk_T.dtype),
    }


def _outcomes(teacher_TK: Tensor, student_TK: Tensor, *, tail: bool) -> tuple[Tensor, Tensor]:
    require_same_axes(teacher_topk=teacher_TK, policy_topk=student_TK)
    teacher_TK = teacher_TK.detach()
    if tail:
        return with_tail(teacher_TK), with_tail(student_TK)
    return teacher_TK.double(), student_TK.double()
