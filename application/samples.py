"""Records of trajectories, for people and for replay."""

from __future__ import annotations

from hexpo.application.ports.tracker import Sample
from hexpo.domain.trajectory import Failed, Graded, Scored


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
