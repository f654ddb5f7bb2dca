"""The row schema: what a row of a file must hold, and how it becomes a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hexpo.adapters.prompts.wire.config import Config
from hexpo.adapters.prompts.wire.template import fill
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Message, Prompt

ROLES = ("system", "user", "assistant", "tool")

_ABSENT = object()


@attrs.frozen(kw_only=True)
class Place:
    """Where a row stands: for its id and for errors."""

    file: str
    """As the user wrote it, or as the pattern found it."""
    name: str
    """Last part of the file's path."""
    row: int
    """From 1; of a text file, its line."""

    def error(self, field: str, problem: str) -> DataError:
        """What is wrong with one field of this row."""
        return DataError(f"{self.file}, row {self.row}, field {field!r}: {problem}")


def prompt_from(record: Any, config: Config, *, at: Place) -> Prompt:
    """A prompt from a row, its own names or verl's.

    Every field that is not the question, the truth, the id or the source goes to `extra`, under
    its own name, so that a grader written for the file finds it.

    Raises: DataError: a field is missing or of the wrong kind; names file, row and field.
        ConfigurationError: the template names a field that the row lacks.
    """
    if not isinstance(record, Mapping):
        raise at.error("", f"a row is an object with fields, this is {type(record).__name__}")
    used = {"prompt": config.prompt}
    question = _get(record, config.prompt)
    if question is _ABSENT or question is None:
        raise at.error(
            config.prompt, f"missing; the row has {_names(record)}: name the question by `prompt`"
        )
    truth = _truth(record, config, used, at)
    name = _first(record, config.source, ("source", "data_source"), "source", used, at)
    return Prompt(
        id=_id(record, config, used, at),
        messages=_messages(question, record, config, at),
        truth=truth,
        source="" if name is _ABSENT else str(name),
        extra={key: value for key, value in record.items() if key not in used.values()},
    )


def _truth(record: Mapping[str, Any], config: Config, used: dict[str, str], at: Place) -> Any:
    names = ("truth", "reward_model.ground_truth")
    truth = _first(record, config.truth, names, "truth", used, at, needed=config.needs_truth)
    if truth is _ABSENT or config.truth_after is None:
        return None if truth is _ABSENT else truth
    field = used["truth"]
    if not isinstance(truth, str):
        raise at.error(field, f"`truth_after` needs a text, this is {type(truth).__name__}")
    _, mark, rest = truth.rpartition(config.truth_after)
    if not mark or not rest.strip():
        raise at.error(field, f"nothing follows {config.truth_after!r}; mend the row")
    return rest.strip()


def _first(
    record: Mapping[str, Any],
    chosen: str | None,
    known: tuple[str, ...],
    meaning: str,
    used: dict[str, str],
    at: Place,
    *,
    needed: bool = False,
) -> Any:
    for name in (chosen,) if chosen is not None else known:
        value = _get(record, name)
        if value is not _ABSENT and value is not None:
            used[meaning] = name
            return value
    if needed or chosen is not None:
        name = chosen or known[0]
        raise at.error(
            name, f"missing; the row has {_names(record)}: name its field by `{meaning}`"
        )
    return _ABSENT


def _id(record: Mapping[str, Any], config: Config, used: dict[str, str], at: Place) -> str:
    value = _first(record, config.id, ("id",), "id", used, at)
    if value is _ABSENT:
        return f"{at.name}:{at.row}"
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise at.error(used["id"], f"an id is a text or a whole number, this is {value!r}")
    return str(value)


def _messages(
    question: Any, record: Mapping[str, Any], config: Config, at: Place
) -> tuple[Message, ...]:
    field = config.prompt
    if isinstance(question, str):
        if not question.strip():
            raise at.error(field, "the question is empty; remove the row")
        text = fill(config.template, {**record, "prompt": question})
        messages = [Message(role="user", content=text)]
    elif isinstance(question, list) and question:
        messages = [_message(item, f"{field}[{i}]", at) for i, item in enumerate(question)]
    else:
        raise at.error(field, f"a text or a list of messages is needed, this is {question!r:.80}")
    for place, message in enumerate(messages):
        if any("\ud800" <= letter <= "\udfff" for letter in message.content):
            raise at.error(
                f"{field}[{place}]", "half a surrogate pair is no text (cut emoji?); mend the row"
            )
    if config.system is not None and messages[0].role != "system":
        messages.insert(0, Message(role="system", content=config.system))
    return tuple(messages)


def _message(item: Any, field: str, at: Place) -> Message:
    if not isinstance(item, Mapping):
        raise at.error(field, f"a message is {{role, content}}, this is {item!r:.80}")
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise at.error(f"{field}.role", f"{role!r} is none of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise at.error(
            f"{field}.content", f"a text is needed, this is {content!r:.80}; media are not read"
        )
    # A table with one column type for all messages fills what a message lacks with null.
    more = [key for key, value in item.items() if value is not None and key not in _MESSAGE]
    if more:
        raise at.error(f"{field}.{more[0]}", "a message has only role and content; remove it")
    return Message(role=role, content=content)


_MESSAGE = ("role", "content")


def _get(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(map(str, record)) or "no field"
