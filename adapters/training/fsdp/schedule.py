"""The learning rate as a function of the steps applied so far."""

from __future__ import annotations

import math

from hexpo.adapters.training.fsdp.config import Config, Schedule


def learning_rate(config: Config, *, applied: int, total_steps: int) -> float:
    """Of the step that follows `applied` earlier ones; skipped steps do not count.

    Warm-up reaches the full rate at step `warmup_steps`; a falling one ends at
    learning_rate * min_ratio with step `total_steps`, and stays there.
    """
    if applied < config.warmup_steps:
        return config.learning_rate * (applied + 1) / config.warmup_steps
    length = max(1, total_steps - 1 - config.warmup_steps)
    done = min(1.0, (applied - config.warmup_steps) / length)
    match config.schedule:
        case Schedule.CONSTANT:
            left = 1.0
        case Schedule.LINEAR:
            left = 1.0 - done
        case Schedule.COSINE:
            left = (1.0 + math.cos(math.pi * done)) / 2
    return config.learning_rate * (config.min_ratio + (1.0 - config.min_ratio) * left)
