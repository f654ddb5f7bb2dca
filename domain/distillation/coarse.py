"""A distribution over a few kept ids, with the rest of the mass as one tail bucket.

Merging outcomes never raises a divergence, so that what is computed on kept ids and tail is a
true lower bound of the full one: never negative, 0 only if the two agree on ids and tail, and
equal to the full one where every id is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor


def with_tail(logprobs_TK: Tensor) -> Tensor:
    """(T, K + 1) float64: the kept log-probs and that of all other ids together.

    The tail's probability is held at the precision of the dtype given, from where it has no
    gradient: a student whose whole mass lies on the kept ids gives a finite number.

    Args: logprobs_TK: (T, K) nats, of different ids; carries gradient.
    """
    kept_TK = logprobs_TK.double()
    tail_T = 1 - kept_TK.exp().sum(-1, keepdim=True)
    floor = torch.finfo(logprobs_TK.dtype).eps
    return torch.cat([kept_TK, tail_T.clamp(min=floor).log()], dim=-1)


def saturated(logprobs_TK: Tensor) -> Tensor:
    """Bool (T,): tokens whose tail is held at its floor."""
    floor = torch.finfo(logprobs_TK.dtype).eps
    return 1 - logprobs_TK.double().exp().sum(-1) <= floor


def valid_topk(logprobs_TK: Tensor, *, slack: float = 1e-3) -> Tensor:
    """Bool (T,): answers of a teacher that are a distribution's log-probs.

    All K finite and not positive, and their mass at most 1 + slack; a teacher that gave too few,
    too many or none is stored as NaN, and its tokens train nothing and are counted.
    """
    known_T = (logprobs_TK.isfinite() & (logprobs_TK <= 0)).all(-1)
    return known_T & (logprobs_TK.double().exp().sum(-1) <= 1 + slack)
