"""Implements the Tokenizer port with a Hugging Face fast tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hexpo.adapters.models.loading import Location, locate
from hexpo.application.ports.tokenizer import Followed, Rendered
from hexpo.domain.errors import ModelError
from hexpo.domain.trajectory import Message

_ANSWER, _MARK = "\ue000answer\ue000", "\ue000mark\ue000"
"""Stand in a template for what is said: of characters that no text has."""


class TransformersTokenizer:
    """Renders with the model's own chat template; reads nothing after it was made."""

    def __init__(self, tokenizer: Any, *, location: Location) -> None:
        self._tokenizer = tokenizer
        self._where = location.folder
        ids = {tokenizer.eos_token_id, *_declared_stops(location)}
        self._stop_ids = tuple(sorted(found for found in ids if found is not None))
        self._identity = _identity_of(tokenizer)

    @property
    def identity(self) -> str:
        """Hash of vocabulary, rules and chat template."""
        return self._identity

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ends of an answer: the tokenizer's own, and those of the model's files."""
        return self._stop_ids

    @property
    def vocabulary(self) -> int:
        """Number of ids, added ones included."""
        return len(self._tokenizer)

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of a conversation and the generation prompt. Raises ModelError: there is no chat
        template, or it refuses the conversation."""
        return self._encode(self._text(messages, is_open=True))

    def render_answers(self, messages: Sequence[Message]) -> Rendered:
        """Ids of a whole conversation, and which of them are answers. Raises ModelError: see
        `render`; or the template keeps no prefix, or ends an answer without a stop id."""
        ids: list[int] = []
        answered: list[bool] = []
        whole, done = self._text(messages, is_open=False), ""
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            before = self._text(messages[:place], is_open=True)
            until = self._text(messages[: place + 1], is_open=False)
            if not (before.startswith(done) and until.startswith(before)):
                raise self._rewrites(place)
            context, piece = self._encode(before[len(done) :]), self._encode(until[len(before) :])
            ends = [at for at, token in enumerate(piece, start=1) if token in self._stop_ids]
            if not ends:
                raise self._endless()
            ids += [*context, *piece]
            answered += [False] * len(context)
            answered += [at < ends[-1] for at in range(len(piece))]
            done = until
        if not whole.startswith(done):
            raise self._rewrites(len(messages) - 1)
        rest = self._encode(whole[len(done) :])
        return Rendered((*ids, *rest), (*answered, *[False] * len(rest)))

    def render_next(
        self, messages: Sequence[Message], following: Message, *, ended: bool
    ) -> Followed:
        """Ids between an answer to `messages` and the next one. Raises ModelError: see `render`;
        or the template drops the message, or ends an answer without a stop id."""
        marked = self._behind_an_answer(messages, Message(following.role, _MARK))
        text = self._behind_an_answer(messages, following)
        before, mark, behind = marked.partition(_MARK)
        if not (mark and text.startswith(before) and text.endswith(behind)):
            raise ModelError(
                f"the chat template in {self._where} does not keep what a {following.role} says"
                " after an answer: such a conversation cannot be played"
            )
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = tuple(int(token) for token in encoded["input_ids"])
        words = range(len(before), len(text) - len(behind))
        said = tuple(
            start < words.stop and end > words.start and start < end
            for start, end in encoded["offset_mapping"]
        )
        end = next((at for at, token in enumerate(ids) if token in self._stop_ids), len(ids))
        if any(said[: end + 1]) or end == len(ids):
            raise self._endless()
        first = end + 1 if ended else 0
        return Followed(ids[first:], said[first:])

    def _behind_an_answer(self, messages: Sequence[Message], following: Message) -> str:
        """What the template puts behind an answer's last word, up to the next answer's first;
        nothing where it hides the answer."""
        said = [*messages, Message("assistant", _ANSWER), following]
        _, shown, behind = self._text(said, is_open=True).rpartition(_ANSWER)
        return behind if shown else ""

    def _rewrites(self, place: int) -> ModelError:
        return ModelError(
            f"the chat template in {self._where} writes message {place + 1} of a conversation"
            " otherwise when more follows: its answers cannot be learnt together. Give each answer"
            " a row of its own"
        )

    def _endless(self) -> ModelError:
        return ModelError(
            f"the chat template in {self._where} ends an answer with none of the stop ids"
            f" {list(self._stop_ids)}: a model that learns it would never stop"
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tuple(int(token) for token in ids)

    def _text(self, messages: Sequence[Message], *, is_open: bool) -> str:
        """Args: is_open: with the generation prompt, for an answer that follows."""
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise ModelError(
                f"the tokenizer in {self._where} has no chat template: use an instruction-tuned"
                " model, or add chat_template.jinja to its folder"
            )
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=is_open, tokenize=False
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(message.role for message in messages)
            raise ModelError(
                f"the chat template in {self._where} refuses a conversation of the roles"
                f" {roles or 'none'}: {error}"
            ) from error
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens and without tidying of spaces."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files."""
        self._tokenizer.save_pretrained(str(folder))


def _declared_stops(location: Location) -> set[int]:
    """`eos_token_id` of the model's own files: a number, a list or nothing."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = location.folder / name
        if location.gguf is None and file.is_file():
            ids = json.loads(file.read_text()).get("eos_token_id")
            found.update([ids] if isinstance(ids, int) else ids or [])
    return found


def _identity_of(tokenizer: Any) -> str:
    state = hashlib.blake2b(digest_size=16)
    state.update(tokenizer.backend_tokenizer.to_str().encode())
    state.update(str(tokenizer.chat_template).encode())
    return state.hexdigest()


def build(*, reference: str) -> TransformersTokenizer:
    """The tokenizer of a model reference (see `models.loading.locate`).

    Raises: ModelError: there is none, or no fast one. MissingExtra: GGUF needs more packages.
    """
    from transformers import AutoTokenizer

    location = locate(reference)
    location.require_readable()
    try:
        tokenizer = AutoTokenizer.from_pretrained(location.folder, **location.arguments)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {reference!r} has no tokenizer that transformers can read"
            f" ({str(error).splitlines()[0]})"
        ) from error
    if not tokenizer.is_fast:
        raise ModelError(f"model {reference!r} has only a slow tokenizer: add its tokenizer.json")
    return TransformersTokenizer(tokenizer, location=location)
