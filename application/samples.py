"""Records of trajectories, for people and for replay."""

from __future__ import annotations

from collections.abc import Iterable

from hexpo.application.ports.tracker import Sample
from hexpo.domain.trajectory import Failed, Graded, Group, Scored


def sample_of(graded: Graded, *, step: int, phase: str) -> Sample:
    """The record of one graded trajectory (R4)."""
    row, outcome = graded.trajectory, graded.outcome
    user = [message.content for message in row.prompt.messages if message.role == "user"]
    return Sample(
        step=step,
        phase=phase,
        id=row.id,
        group=row.group,
        prompt_id=row.prompt.id,
        prompt=user[-1] if user else "",
        answer=row.text,
        score=outcome.value if isinstance(outcome, Scored) else None,
        failure=f"{outcome.cause.value}: {outcome.message}" if isinstance(outcome, Failed) else "",
        stop=row.stop.name.lower(),
        tokens=tuple(row.tokens.tolist()),
        prompt_length=row.prompt_length,
        logprobs=tuple(row.behaviour.tolist()),
        versions=tuple(row.version.tolist()),
        extra=outcome.extra if isinstance(outcome, Scored) else {},
    )


def samples_of(groups: Iterable[Group], *, step: int) -> list[Sample]:
    """Records of all that a step trained on."""
    return [sample_of(row, step=step, phase="train") for group in groups for row in group.rows]
