"""What a run is asked for, and what it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs

from hexpo.application.continuing import OnUpdate
from hexpo.application.evaluate import EvaluationReport


class Side(Enum):
    """Who answers evaluations; for the first and the last one training waits whoever it is."""

    ROLLOUT = "rollout"
    """Whoever generates, while training waits."""
    LEASE = "lease"
    """Replicas of its own, at one version, while training and generation go on."""
    TRAINER = "trainer"
    """The trainer's own model, while training waits and generation goes on."""


@attrs.frozen(kw_only=True)
class Schedule:
    """What happens when. Steps count publications: one batch, trained and published."""

    steps: int
    """Where the run ends."""
    on_update: OnUpdate = OnUpdate.KEEP
    """What a weight update does to running requests."""
    parts: int = 1
    """A batch is trained in so many parts, each as soon as its groups are there. More than one
    needs an engine that generates while weights change, devices of its own, and no column that
    the policy itself scores before a batch's first optimizer step."""
    evaluate_every: int = 0
    """In steps; 0: only where `evaluate_first` and `evaluate_last` say so."""
    evaluate_first: bool = True
    evaluate_last: bool = True
    side: Side = Side.ROLLOUT
    """Of evaluations."""
    save_every: int = 0
    """In steps; 0: at the end and when interrupted."""
    probe_every: int = 0
    """In steps, and once at the start; 0: engines are not compared with the trainer."""

    def is_over(self, step: int) -> bool:
        """Whether the run ends after this step."""
        return step >= self.steps

    def evaluates(self, step: int) -> bool:
        """Whether held-out prompts are asked after this step."""
        return (self.is_over(step) and self.evaluate_last) or _due(step, self.evaluate_every)

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is written after this step, though the run goes on."""
        return _due(step, self.save_every)

    def probes(self, step: int) -> bool:
        """Whether engines are compared with the trainer in this step."""
        return _due(step, self.probe_every)


@attrs.frozen(kw_only=True, eq=False)
class RunReport:
    """What a run did."""

    step: int
    """The last step that was trained and published."""
    finished: bool
    """False: it was stopped before its last step; resume goes on there."""
    history: Sequence[Mapping[str, float]]
    """Reduced metrics of every step of this process, in order; `step` is among them."""
    first_evaluation: EvaluationReport | None
    last_evaluation: EvaluationReport | None


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
