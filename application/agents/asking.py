"""What episodes share: how an answer is asked for, and which policies sampled it."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.application.ports.rollout import Generation, Request
from hexpo.domain.sampling import Sampling
from hexpo.domain.seeds import seed_for
from hexpo.domain.trajectory import Ticket


def request_of(
    ticket: Ticket,
    sample: int,
    prompt: tuple[int, ...],
    *,
    sampling: Sampling,
    seed: int,
    stream: str,
    turn: int = 0,
) -> Request:
    """One answer of an episode.

    Every answer has a seed of its own, made from the run's seed, the stream, its ticket and its
    turn: the order of events changes none of them. The first answers of a ticket share a session,
    so that an engine may compute their prompt once; later turns have one of their own.
    """
    # Evaluations ask the same prompts again and again: by the prompt's id their randomness is the
    # same each time, so that two evaluations differ by the weights only.
    name = ticket.number if stream == "train" else ticket.prompt.id
    together = f"{stream}.{ticket.number}"
    alone, later = f"{together}.{sample}", (turn,) if turn else ()
    return Request(
        id=f"{alone}.{turn}" if turn else alone,
        prompt=prompt,
        sampling=sampling,
        seed=seed_for(seed, stream, name, sample, *later),
        session=alone if turn else together,
    )


def versions_of(answer: Generation) -> Tensor:
    """int64 (N,): the policy version that sampled each id of an answer."""
    version_N = torch.zeros(len(answer.tokens), dtype=torch.int64)
    for span in answer.spans:
        version_N[span.start : span.end] = span.version
    return version_N
