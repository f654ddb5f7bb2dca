"""Whether what a rollout gave can be an answer at all."""

from __future__ import annotations

import torch

from hexpo.domain.trajectory import StopReason, Trajectory


def flaw_of(row: Trajectory, *, vocabulary: int | None = None) -> str | None:
    """What is wrong with a trajectory, or None. Missing log-probs are no flaw: they are masked.

    Args: vocabulary: ids from there on are none; None: not known.
    """
    shapes = [tuple(one.shape) for one in (row.tokens, row.action, row.behaviour, row.version)]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        return f"tokens, action, behaviour and version have different lengths: {shapes}"
    if not 0 <= row.prompt_length <= row.tokens.numel():
        return f"a prompt of {row.prompt_length} tokens does not fit into {row.tokens.numel()}"
    if row.stop is StopReason.ABORTED:
        return "it was cut and nobody continued it: a part is not graded as an answer"
    sampled = row.tokens[row.action]
    if not sampled.numel():
        return None
    lowest, highest = (int(value) for value in torch.aminmax(sampled))
    if lowest < 0 or (vocabulary is not None and highest >= vocabulary):
        bound = "no negative ids" if vocabulary is None else f"{vocabulary} ids"
        return f"it has ids from {lowest} to {highest}, and there are {bound}"
    if int(row.version[row.action].min()) < 0:
        return "it has tokens of no version"
    return None
