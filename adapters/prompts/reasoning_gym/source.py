"""Makes questions with reasoning-gym."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import attrs

from hexpo.adapters.prompts.wire.template import fill
from hexpo.application.ports.prompts import PromptSource
from hexpo.domain.errors import ConfigurationError, DataError, MissingExtra
from hexpo.domain.seeds import seed_for
from hexpo.domain.trajectory import Message, Prompt

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset


class Split(Enum):
    """Which share of a task's questions a source gives."""

    ALL = "all"
    """Every question."""
    TRAIN = "train"
    """All but the held-out ones."""
    HELD_OUT = "held_out"
    """The share `held_out`, for validation."""


@attrs.frozen(kw_only=True)
class Config:
    """A task, what is asked, and which questions of it.

    The side of the split is a function of the question's text (and `held_out`, `split_seed`), so
    a training and a held-out source never share one, whatever their seeds, sizes and options.
    """

    task: str
    """Name of a reasoning-gym task, such as `chain_sum`."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """The task's own settings, such as `max_digits`."""
    size: int = attrs.field(default=1000, validator=attrs.validators.ge(1))
    """How many distinct questions."""
    seed: int = 0
    """Of the task's generator; the order of epochs goes by the run's seed."""
    matching: str | None = None
    """Keep only questions in which this regular expression is found; unset: all."""
    template: str = "{question}"
    """What is asked: may name `question`, a named group of `matching`, or a metadata field."""
    system: str | None = None
    """A system message; unset: none."""
    split: Split = Split.ALL
    """Which side of the split."""
    held_out: float = attrs.field(
        default=0.25, validator=[attrs.validators.gt(0), attrs.validators.lt(1)]
    )
    """Share of the questions that is held out; alike in both sources of a split."""
    split_seed: int = 0
    """Chooses another split; alike in both sources of a split."""
    shuffle: bool = True
    """Draw each epoch in a seeded order of its own."""


def build(config: Config, *, seed: int) -> PromptSource:
    """Make the questions; `seed` is the run's, for the order of epochs.

    Raises: ConfigurationError: an unknown task, option or template field, a bad expression.
        DataError: the task has fewer distinct questions than `size` asks for.
        MissingExtra: reasoning-gym is not installed.
    """
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "prompts/reasoning_gym needs reasoning-gym: pip install 'hexpo[demo]'"
        ) from error
    from hexpo.adapters.prompts.wire.order import OrderedRows

    try:
        # The task's own size is only its length; entries are made by index, as many as needed.
        options = {**config.options, "seed": config.seed, "size": _attempts(config)}
        task = reasoning_gym.create_dataset(config.task, **options)
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigurationError(
            f"prompts/reasoning_gym: task {config.task!r} with options {dict(config.options)}: "
            f"{error}"
        ) from error
    what = f"prompts/reasoning_gym ({config.task}, {config.split.value})"
    rows = list(_rows(task, config, what))
    return OrderedRows(rows, seed=seed, shuffle=config.shuffle, what=what)


def _attempts(config: Config) -> int:
    """Entries to look at before giving up: drawing the last of n questions takes about n log n."""
    return 1000 + 100 * config.size


def _rows(task: ProceduralDataset, config: Config, what: str) -> Iterator[Prompt]:
    pattern = _compile(config.matching)
    seen: set[str] = set()
    for index in range(_attempts(config)):
        entry = task[index]
        found = pattern.search(entry["question"])
        if found is None:
            continue
        text = fill(config.template, _values(entry, found))
        if text in seen or not _on_side(text, config):
            continue
        seen.add(text)
        yield _prompt(text, entry, index, config)
        if len(seen) == config.size:
            return
    raise DataError(
        f"{what}: {_attempts(config)} entries gave {len(seen)} distinct questions, {config.size} "
        "are asked for; lower `size` or widen `options`, `matching` or the split"
    )


def _compile(matching: str | None) -> re.Pattern[str]:
    try:
        return re.compile(matching or "")
    except re.error as error:
        raise ConfigurationError(
            f"prompts/reasoning_gym: `matching` {matching!r} is no regular expression: {error}"
        ) from error


def _values(entry: Mapping[str, Any], found: re.Match[str]) -> Mapping[str, Any]:
    return {**entry["metadata"], **found.groupdict(), "question": entry["question"]}


def _on_side(text: str, config: Config) -> bool:
    if config.split is Split.ALL:
        return True
    held_out = seed_for(config.split_seed, "split", text) < config.held_out * 2**63
    return held_out == (config.split is Split.HELD_OUT)


def _prompt(text: str, entry: Mapping[str, Any], index: int, config: Config) -> Prompt:
    messages = [Message(role="user", content=text)]
    if config.system is not None:
        messages.insert(0, Message(role="system", content=config.system))
    return Prompt(
        id=f"{config.task}:{config.seed}:{index}",
        messages=tuple(messages),
        truth=entry["answer"],
        source=config.task,
        extra={"task": config.task, "options": dict(config.options), "entry": dict(entry)},
    )
