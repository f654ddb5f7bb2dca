"""Divergences of two log-prob vectors on the last axis: the plain formulas.

The temperature of a divergence divides the logits of both before they are made log-probs
(`from_logits`, a model's head, a teacher), and nothing is multiplied back. It is not the
temperature of sampling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexpo.domain.checks import require_above, require_inside, require_same_axes

FLOOR = -1e4
"""Least log-prob, in nats: below it an outcome counts as impossible and adds nothing."""


def from_logits(logits_TV: Tensor, *, temperature: float = 1.0) -> Tensor:
    """(T, V) log-probs of logits divided by the temperature. Raises WrongValue for one <= 0."""
    require_above(0.0, temperature=temperature)
    return torch.log_softmax(logits_TV / temperature, dim=-1)


def kl(first: Tensor, second: Tensor) -> Tensor:
    """KL(first || second) = sum_v p_v (log p_v - log q_v), over the last axis.

    Args: log-probs in nats, of one shape, each summing to 1 over the last axis.
    Returns: one axis less. Raises: WrongColumn: axes disagree.
    """
    require_same_axes(first=first, second=second)
    first, second = first.clamp(min=FLOOR), second.clamp(min=FLOOR)
    return (first.exp() * (first - second)).sum(-1)


def mixture(first: Tensor, second: Tensor, *, share: float) -> Tensor:
    """The log-probs of share * first + (1 - share) * second. Raises WrongValue off ]0, 1[."""
    require_inside(0.0, 1.0, share=share)
    first, second = first.clamp(min=FLOOR), second.clamp(min=FLOOR)
    return torch.logaddexp(first + math.log(share), second + math.log1p(-share))


def jensen_shannon(teacher: Tensor, student: Tensor, *, beta: float) -> Tensor:
    """beta KL(T || M) + (1 - beta) KL(S || M), M = beta T + (1 - beta) S, for 0 < beta < 1."""
    require_inside(0.0, 1.0, beta=beta)
    middle = mixture(teacher, student, share=beta)
    return beta * kl(teacher, middle) + (1 - beta) * kl(student, middle)


def skewed(teacher: Tensor, student: Tensor, *, alpha: float) -> Tensor:
    """KL(T || alpha T + (1 - alpha) S), for 0 < alpha < 1."""
    require_inside(0.0, 1.0, alpha=alpha)
    return kl(teacher, mixture(teacher, student, share=alpha))


def skewed_reverse(teacher: Tensor, student: Tensor, *, alpha: float) -> Tensor:
    """KL(S || (1 - alpha) T + alpha S), for 0 < alpha < 1."""
    require_inside(0.0, 1.0, alpha=alpha)
    return kl(student, mixture(student, teacher, share=alpha))
