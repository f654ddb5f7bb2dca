"""Port: where numbers and samples go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from hexpo.domain.metrics import Metrics


@attrs.frozen(kw_only=True)
class Sample:
    """What one trajectory was, for people and for replay."""

    step: int
    phase: str
    """`train`, or `evaluate/<name>`."""
    id: int
    group: int
    prompt_id: str
    prompt: str
    """The last user message."""
    answer: str
    score: float | None
    """None: not scored; `failure` says why."""
    failure: str = ""
    stop: str = ""
    tokens: tuple[int, ...] = ()
    """Prompt and answer ids."""
    prompt_length: int = 0
    logprobs: tuple[float, ...] = ()
    """Behaviour log-probs of all tokens, 0 where not sampled."""
    versions: tuple[int, ...] = ()
    extra: Mapping[str, Any] = attrs.field(factory=dict)


class Tracker(Protocol):
    """Receives a run's numbers. Steps are monotone; values arrive already reduced per step.

    Promises: what was reported before `close` returned is stored. A tracker never fails a run: it
    logs its own failure once and goes quiet.
    """

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        """A run starts (or resumes) and will make steps first_step + 1 .. steps."""
        ...

    def report(self, step: int, metrics: Metrics) -> None:
        """Metrics of a step, or of an evaluation at that step."""
        ...

    def samples(self, samples: Sequence[Sample]) -> None:
        """Records of trajectories."""
        ...

    def progress(self, done: int, wanted: int, what: str) -> None:
        """Work inside a step: answers finished, micro-batches done."""
        ...

    def close(self) -> None:
        """Flush. Safe to call twice."""
        ...
