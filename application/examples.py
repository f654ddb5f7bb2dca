"""Rows of a data set that bring answers, as examples to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import attrs
import torch

from hexpo.application.filtering import Dropped, FilteredSource, OnLong
from hexpo.application.ports.prompts import PromptSource
from hexpo.application.ports.tokenizer import DialogueTokenizer
from hexpo.domain.batch.examples import Example
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Message, Prompt

ANSWER, CHOSEN, REJECTED, LABEL, LEARNT = "answer", "chosen", "rejected", "label", "learnt"
"""Fields of a row, beside its question."""


class Form(Enum):
    """What a row brings beside its question."""

    ANSWERS = "answers"
    """An answer: `answer`, else the row's truth; or the question is a whole conversation."""
    PAIRS = "pairs"
    """A better and a worse answer: `chosen` and `rejected`."""
    JUDGED = "judged"
    """An answer, and whether it is good: `label`."""

    @property
    def examples(self) -> int:
        """How many a row has."""
        return 2 if self is Form.PAIRS else 1


@attrs.frozen(kw_only=True)
class ExampleReader:
    """Makes a row's examples with the model's own chat template."""

    form: Form
    tokenizer: DialogueTokenizer
    limit: int
    """Longest conversation, in ids. A longer one is left out, never cut."""

    def read(self, row: Prompt) -> tuple[Example, ...]:
        """The row's examples: one, or the chosen and the rejected one.

        Raises: DataError: a field is missing or of the wrong kind; names row and field.
            ModelError: the template refuses the conversation.
        """
        match self.form:
            case Form.ANSWERS:
                return (self._example(row, *_conversation(row)),)
            case Form.JUDGED:
                messages, learnt = _conversation(row)
                return (self._example(row, messages, learnt, chosen=_label(row)),)
            case Form.PAIRS:
                return tuple(
                    self._example(
                        row,
                        [*row.messages, *_turns(row, field)],
                        _only_after(row.messages, row, field),
                        chosen=field == CHOSEN,
                    )
                    for field in (CHOSEN, REJECTED)
                )

    def misfit(self, unit: Sequence[Example]) -> str:
        """Why a row's examples cannot be learnt from; empty where they can."""
        longest = max(len(example.tokens) for example in unit)
        if longest > self.limit:
            return f"{longest} ids, the limit is {self.limit}"
        return "" if all(bool(example.action.any()) for example in unit) else "no answer to learn"

    def _example(
        self,
        row: Prompt,
        messages: Sequence[Message],
        learnt: Sequence[bool],
        *,
        chosen: bool = True,
    ) -> Example:
        """Args: learnt: whether each message is to be learnt, if it is an answer."""
        rendered = self.tokenizer.render_answers(messages)
        action = torch.tensor(rendered.answered, dtype=torch.bool)
        if bool(action[:1].any()):
            raise DataError(f"row {row.id!r}: it begins with an answer; put a question first")
        edges = torch.cat([torch.tensor([False]), action[:-1]])
        turn = ((action & ~edges).cumsum(0) - 1).clamp(min=0)  # the answer that each token is in
        answers = [one for one, message in zip(learnt, messages, strict=True) if _answers(message)]
        if answers and not all(answers):
            action = action & torch.tensor(answers)[turn]
        return Example(tokens=torch.tensor(rendered.ids), action=action, chosen=chosen)


@attrs.frozen(kw_only=True)
class Readable:
    """The rows that can be learnt from, and those that cannot."""

    source: FilteredSource
    dropped: tuple[Dropped, ...]
    """In file order: too long, or without an answer to learn."""


def readable(source: PromptSource, reader: ExampleReader, *, on_long: OnLong) -> Readable:
    """Read every row once, so that a bad one ends the run before a model loads.

    Raises: DataError: a bad row, or no row is left; with ERROR, the first that cannot be learnt.
    """
    dropped: list[Dropped] = []
    kept: set[str] = set()
    for row in source.rows():
        unit = reader.read(row)
        reason = reader.misfit(unit)
        if not reason:
            kept.add(row.id)
            continue
        if on_long is OnLong.ERROR:
            raise DataError(f"row {row.id!r}: {reason}; mend the row, raise the limit or filter")
        length = max(len(example.tokens) for example in unit)
        dropped.append(Dropped(id=row.id, length=length, reason=reason))
    if not kept:
        raise DataError(
            f"no rows left of {len(dropped)}: row {dropped[0].id!r} has {dropped[0].reason}"
            if dropped
            else "no rows left: the source has none"
        )
    return Readable(source=FilteredSource(source, kept=frozenset(kept)), dropped=tuple(dropped))


def _answers(message: Message) -> bool:
    return message.role == "assistant"


def _conversation(row: Prompt) -> tuple[Sequence[Message], Sequence[bool]]:
    """Messages with their answers, and which of them are to be learnt: the given answer alone, or
    all answers of a whole conversation but those that `learnt` excepts."""
    if ANSWER in row.extra or not _answers(row.messages[-1]):
        messages = [*row.messages, *_turns(row, ANSWER)]
        return messages, _only_after(row.messages, row, ANSWER)
    answers = [place for place, message in enumerate(row.messages) if _answers(message)]
    learnt = row.extra.get(LEARNT)
    if learnt is None:
        return row.messages, [True] * len(row.messages)
    fits = isinstance(learnt, list) and all(isinstance(one, bool) for one in learnt)
    if not fits or len(learnt) != len(answers):
        raise _bad(row, LEARNT, f"one true or false for each of {len(answers)} answers is needed")
    chosen = dict(zip(answers, learnt, strict=True))
    return row.messages, [chosen.get(place, False) for place in range(len(row.messages))]


def _only_after(messages: Sequence[Message], row: Prompt, field: str) -> list[bool]:
    return [False] * len(messages) + [True] * len(_turns(row, field))


def _turns(row: Prompt, field: str) -> list[Message]:
    """The messages of an answer: a text, or a list that begins and ends with the assistant's."""
    value = row.extra.get(field)
    if value is None and field == ANSWER:
        value = row.truth
    if value is None:
        have = ", ".join(row.extra) or "no further field"
        raise _bad(row, field, f"missing; the row has {have}")
    if isinstance(value, str):
        if not value.strip():
            raise _bad(row, field, "the answer is empty; remove the row")
        return [Message("assistant", value)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [Message("assistant", str(value))]
    if not isinstance(value, list) or not value:
        raise _bad(row, field, f"a text or a list of messages is needed, this is {value!r:.80}")
    turns = [_message(item, row, f"{field}[{place}]") for place, item in enumerate(value)]
    for asked in range(min(len(turns), len(row.messages)), 0, -1):
        if tuple(turns[:asked]) == row.messages[-asked:]:  # TRL's rows repeat the question
            turns = turns[asked:]
            break
    if not turns or not _answers(turns[0]) or not _answers(turns[-1]):
        raise _bad(row, field, "must begin and end with a message of the assistant")
    return turns


def _message(item: object, row: Prompt, field: str) -> Message:
    if isinstance(item, Mapping):
        role, content = item.get("role"), item.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return Message(role, content)
    raise _bad(row, field, f"a message is {{role, content}}, this is {item!r:.80}")


def _label(row: Prompt) -> bool:
    value = row.extra.get(LABEL)
    if not isinstance(value, bool) and value not in (0, 1):
        what = "missing" if value is None else f"this is {value!r:.80}"
        raise _bad(row, LABEL, f"true (a good answer) or false is needed; {what}")
    return bool(value)


def _bad(row: Prompt, field: str, problem: str) -> DataError:
    return DataError(f"row {row.id!r}, field {field!r}: {problem}")
