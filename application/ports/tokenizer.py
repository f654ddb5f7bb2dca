"""Port: text and ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import attrs

from hexpo.domain.trajectory import Message


@attrs.frozen
class Rendered:
    """The ids of a whole conversation, and whose they are."""

    ids: tuple[int, ...]
    answered: tuple[bool, ...]
    """Of each id: it belongs to an assistant's message, its end token included."""


@attrs.frozen
class Followed:
    """The ids that stand between two answers of a conversation."""

    ids: tuple[int, ...]
    said: tuple[bool, ...]
    """Of each id: it belongs to what the message says, not to the template."""


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


class DialogueTokenizer(Tokenizer, Protocol):
    """Renders conversations whose answers are given, to learn from them.

    Promises: every answer follows the ids that `render` gives for what stands before it, and is
    encoded on its own, as an engine samples it. What the template puts after an answer's end
    token is nobody's answer.
    Raises: ModelError: as `render`; or the template changes earlier messages when later ones
        follow, or ends an answer without one of the stop ids.
    """

    def render_answers(self, messages: Sequence[Message]) -> Rendered:
        """Ids of a conversation that is over, without a generation prompt."""
        ...


class TurnTokenizer(Tokenizer, Protocol):
    """Renders what comes between two answers of a conversation.

    Promises: behind the ids of an answer as an engine sampled them, these ids go on with the
    conversation as the template does: no id is encoded twice.
    Raises: ModelError: as `render`; or the template does not keep what a message says.
    """

    def render_next(
        self, messages: Sequence[Message], following: Message, *, ended: bool
    ) -> Followed:
        """From the end of the answer to `messages` up to the beginning of the next one.

        Args: ended: the answer's last id is a stop id; else the template's own is put there.
        """
        ...
