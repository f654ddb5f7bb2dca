"""Port: text and ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hexpo.domain.trajectory import Message


class Tokenizer(Protocol):
    """Renders conversations and reads answers.

    Promises: `render` gives exactly the ids that are sent to an engine: a length filter and a
    rollout that both call it cannot disagree.
    Raises: ModelError: the model has no chat template, or it refuses a conversation; says which.
    """

    @property
    def identity(self) -> str:
        """Changes when vocabulary or template change."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end an answer of this model."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation and the generation prompt."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        ...

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into an exported model folder."""
        ...
