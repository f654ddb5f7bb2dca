"""The use case: tune the model to the business rule, and report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from hexpo.entrypoints.library import build

from application.engine import EvenEngine
from application.reward import BrevityReward


@attrs.frozen(kw_only=True)
class Tuned:
    """What the rest of the application wants to know."""

    rewards: tuple[float, ...]
    """Mean reward of each step."""
    answers: int
    """Answers that the application's own reward graded."""
    folder: Path


def tune(settings: Mapping[str, Any]) -> Tuned:
    """Run hexpo inside this process, with this application's reward and engine in place."""
    run = build(settings, "algorithm.proximal=behaviour")
    reward = BrevityReward()
    tokenizer = run.container.tokenizer()
    engine = EvenEngine(vocabulary=tokenizer.vocabulary, stop_id=tokenizer.stop_ids[0])

    # Providers of the *instance*: overriding those of the class would change every other run.
    run.container.reward.override(reward)
    run.container.rollout.override(engine)

    report = run.train()
    return Tuned(
        rewards=tuple(step["reward/mean"] for step in report.history),
        answers=reward.graded,
        folder=run.folder,
    )
