"""Whether what a rollout gave can be an answer at all."""

from __future__ import annotations

import torch

from hexpo.application.ports.rollout import Generation
from hexpo.domain.trajectory import StopReason, Trajectory


def flaw_of(row: Trajectory, *, vocabulary: int | None = None) -> str | None:
    """What is wrong with a trajectory, or None. Missing log-probs are no flaw: they are masked.

    Args: vocabulary: ids from there on are none; None: not known.
    """
    columns = [row.tokens, row.action, row.behaviour, row.version]
    columns += [] if row.observation is None else [row.observation]
    shapes = [tuple(one.shape) for one in columns]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        return f"tokens, action, behaviour, version and observation differ in length: {shapes}"
    if not 0 <= row.prompt_length <= row.tokens.numel():
        return f"a prompt of {row.prompt_length} tokens does not fit into {row.tokens.numel()}"
    if row.stop is StopReason.ABORTED:
        return "it was cut and nobody continued it: a part is not graded as an answer"
    if not row.tokens.numel():
        return None
    if _strange_ids(row.tokens, vocabulary) is None and int(row.version.min()) >= 0:
        return None  # nearly always; what was sampled is looked up only where something is strange
    sampled = row.tokens[row.action]
    if not sampled.numel():
        return None
    flaw = _strange_ids(sampled, vocabulary)
    if flaw is None and int(row.version[row.action].min()) < 0:
        return "it has tokens of no version"
    return flaw


def flaw_of_piece(piece: Generation, *, vocabulary: int | None = None) -> str | None:
    """What is wrong with what an engine gave, or None; a piece may be cut, and may be empty.

    Args: vocabulary: ids from there on are none; None: not known.
    """
    shapes = [tuple(one.shape) for one in (piece.tokens, piece.logprobs)]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        return f"tokens and log-probs have different lengths: {shapes}"
    return _strange_ids(piece.tokens, vocabulary) if piece.tokens.numel() else None


def _strange_ids(tokens: torch.Tensor, vocabulary: int | None) -> str | None:
    lowest, highest = (int(value) for value in torch.aminmax(tokens))
    if lowest >= 0 and (vocabulary is None or highest < vocabulary):
        return None
    bound = "no negative ids" if vocabulary is None else f"{vocabulary} ids"
    return f"it has ids from {lowest} to {highest}, and there are {bound}"
