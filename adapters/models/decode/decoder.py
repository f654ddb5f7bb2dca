"""What a decoder of any family offers to whoever schedules requests."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import attrs
from torch import Tensor

from hexpo.adapters.models.decode.cache import Lane


class WeightsMode(Enum):
    """Where a decoder's weights lie."""

    LIVE = "live"
    """The trainer's own tensors are read at each step."""
    PACKED = "packed"
    """Copies in the form that multiplies fastest, made by `refresh`."""


@attrs.frozen(eq=False)
class Feed:
    """Ids to append to a sequence."""

    lane: Lane
    ids: Sequence[int]
    """At least one."""


class Decoder(Protocol):
    """Feeds ids to cached sequences.

    A row's logits depend on its own sequence only, up to rounding. Not safe to call from two
    threads at once.
    """

    @property
    def vocabulary(self) -> int:
        """Number of logits a row."""
        ...

    @property
    def mode(self) -> WeightsMode: ...

    def open(self) -> Lane:
        """A new, empty sequence."""
        ...

    def fork(self, lane: Lane, length: int) -> Lane:
        """A new sequence that begins with the first `length` tokens of `lane`, not computed
        again."""
        ...

    def close(self, lane: Lane) -> None:
        """Free a sequence. Safe to call twice."""
        ...

    def prefill(self, feeds: Sequence[Feed]) -> None:
        """Append ids to sequences, all different ones, of which nothing is sampled yet."""
        ...

    def feed(self, feeds: Sequence[Feed]) -> Tensor:
        """Append ids to sequences, all different ones.

        Returns: (len(feeds), vocabulary) logits after each one's last id.
        """
        ...

    def refresh(self) -> None:
        """Take over the present weights. Every open sequence must be closed before."""
        ...
