"""Which log-probs that came from outside are numbers to train on."""

from __future__ import annotations

import torch
from torch import Tensor


def valid_logprobs(logprobs_T: Tensor) -> Tensor:
    """Bool (T,): finite and not positive. A true 0.0 is valid; a missing one is stored as NaN.

    Args: logprobs_T: (T,) nats, of the sampled ids, as an engine or a teacher gave them.
    """
    return logprobs_T.isfinite() & (logprobs_T <= 0)


def of_sampled(answers: list[dict[int, float] | None], sampled: list[int]) -> Tensor:
    """(T,) float32: the log-prob of each sampled id, NaN where the engine gave none.

    Args: answers: what the engine returned at each position, log-probs by id. sampled: the ids.
    """
    taken = [
        float("nan") if answer is None else answer.get(token, float("nan"))
        for answer, token in zip(answers, sampled, strict=True)
    ]
    return torch.tensor(taken, dtype=torch.float32)
