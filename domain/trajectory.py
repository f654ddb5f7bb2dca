"""What a rollout yields: prompts, trajectories, outcomes, groups."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any

import attrs
from torch import Tensor


class StopReason(IntEnum):
    """Why an answer ended: the engine's word, never derived from ids."""

    STOP = 0
    """A stop id or a stop text."""
    LENGTH = 1
    """The token budget."""
    ABORTED = 2
    """Interrupted by a caller; the answer is partial."""
    TIMEOUT = 3
    """The deadline passed."""
    FAILED = 4
    """The rollout, environment or tool raised."""


class Cause(Enum):
    """Why something that should have given a value did not."""

    RAISED = "raised"
    """The code raised; the message holds its type and text."""
    TIMED_OUT = "timed out"
    """It did not end within its bound and was stopped."""
    BAD_RESULT = "bad result"
    """It returned something that is no finite number, or lacks a field."""
    UNSUPPORTED = "unsupported"
    """It does not know this kind of sample."""


@attrs.frozen
class Message:
    """One chat message."""

    role: str
    content: str


@attrs.frozen(kw_only=True)
class Prompt:
    """One row of a data set, ready to be asked."""

    id: str
    """Given at load time and stable between runs: groups and reports go by it, never by text."""
    messages: tuple[Message, ...]
    truth: Any = None
    """What the grader compares with."""
    source: str = ""
    """Which data set or task the row is from; graders may be chosen by it."""
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    """Whatever else the row holds, handed to the grader as it is."""


@attrs.frozen(kw_only=True)
class Ticket:
    """A prompt that was admitted: the unit of accounting."""

    number: int
    """Counts admissions from 0 without gaps; the `group` of its sequences."""
    prompt: Prompt
    version: int
    """Policy version at admission."""
    samples: int
    """How many answers are wanted."""


@attrs.frozen(kw_only=True)
class Scored:
    """A grader's answer for one trajectory."""

    value: float
    components: Mapping[str, float] = attrs.field(factory=dict)
    """Named parts of the value, for metrics and estimators that use them."""
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    """Anything worth keeping in the sample record."""


@attrs.frozen(kw_only=True)
class Failed:
    """A failure as a value: of one sample, counted, never a number."""

    cause: Cause
    message: str


Outcome = Scored | Failed


@attrs.frozen(kw_only=True, eq=False)
class Trajectory:
    """One episode of one prompt: the ids that were sent and sampled, and who chose each.

    All tensors are (L,) over prompt and answer tokens together.
    """

    id: int
    group: int
    prompt: Prompt
    tokens: Tensor
    """int64 ids, exactly as sent to and returned by the engine."""
    prompt_length: int
    """Tokens before the first answer."""
    action: Tensor
    """bool: sampled by the policy (tool, user and template tokens are not)."""
    behaviour: Tensor
    """float32 log-prob of each sampled id under the policy that sampled it; NaN where the engine
    gave none, or an impossible one: such a token is masked and counted, never 0.0."""
    version: Tensor
    """int64 policy version that sampled each token; 0 where `action` is false."""
    stop: StopReason
    text: str = ""
    """The answer's text, for graders and people; training never encodes it again."""
    observation: Tensor | None = None
    """float32 weight of each token that the policy read and did not sample, in a term on
    observations: 0 for a token that no such term learns. None: the episode has none."""
    failure: Failed | None = None
    """Set when the rollout itself failed: no reward, mask 0, out of the group's statistics."""


@attrs.frozen(kw_only=True, eq=False)
class Graded:
    """A trajectory and its outcome."""

    trajectory: Trajectory
    outcome: Outcome


@attrs.frozen(kw_only=True, eq=False)
class Group:
    """All trajectories of one ticket, graded: what the buffer holds."""

    ticket: Ticket
    rows: tuple[Graded, ...]
    greedy: Graded | None = None
    """A further answer at temperature 0: a baseline, never trained."""
