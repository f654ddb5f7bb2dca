"""Leaves out prompts that are too long, measured as they will be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, MutableMapping, Sequence
from enum import Enum

import attrs

from hexpo.application.ports.prompts import Position, PromptSource
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Prompt

Cache = MutableMapping[str, tuple[int, ...]]
"""Lengths of all rows by what they depend on; a plain dict, or one that lies on a disk."""


class OnLong(Enum):
    """What is done about a prompt that is too long."""

    FILTER = "filter"
    """Leave it out and report it."""
    ERROR = "error"
    """Stop before training, naming the first."""


@attrs.frozen(kw_only=True)
class Dropped:
    """A row that was left out."""

    id: str
    length: int
    """Ids of the rendered conversation, generation prompt included."""
    reason: str


def first_of(dropped: Sequence[Dropped], *, most: int = 3) -> str:
    """The first rows that were left out, each with its reason, and how many more there are."""
    shown = "; ".join(f"{row.id}: {row.reason}" for row in dropped[:most])
    more = len(dropped) - most
    return f"{shown}; and {more} more" if more > 0 else shown


class FilteredSource:
    """A `PromptSource` without some rows of another; the rest keep their order, drawn or listed.

    It owns the other source from now on: a position of one is a position of the other.
    """

    def __init__(self, source: PromptSource, *, kept: frozenset[str]) -> None:
        """Args: kept: ids of the rows that stay, at least one of the source's."""
        self._source = source
        self._kept = kept
        text = "\n".join([source.identity, *sorted(kept)])
        self._identity = hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def identity(self) -> str:
        """Changes with the source's rows and seed, and with what is left of them."""
        return self._identity

    @property
    def position(self) -> Position:
        """In the unfiltered source."""
        return self._source.position

    def draw(self) -> Prompt:
        """The next row that stays."""
        while (row := self._source.draw()).id not in self._kept:
            pass
        return row

    def seek(self, position: Position) -> None:
        """Go to a position that this source was at."""
        self._source.seek(position)

    def rows(self) -> Iterator[Prompt]:
        """Every row that stays, once."""
        return (row for row in self._source.rows() if row.id in self._kept)

    def __len__(self) -> int:
        return len(self._kept)


@attrs.frozen(kw_only=True)
class Filtered:
    """What is left, and what is not."""

    kept: FilteredSource
    dropped: tuple[Dropped, ...]
    """In file order."""


def filter_by_length(
    prompts: PromptSource,
    tokenizer: Tokenizer,
    *,
    limit: int,
    on_long: OnLong = OnLong.FILTER,
    cache: Cache | None = None,
) -> Filtered:
    """Keep the rows whose rendered conversation has at most `limit` ids.

    Lengths come from the `render` that a rollout calls, so that no kept row is too long later.

    Args: cache: keeps the lengths, to skip rendering when rows, tokenizer and limit are the same.
    Raises: DataError: no row is left; with ERROR, the first row that is too long.
    """
    lengths = _lengths(prompts, tokenizer, limit, cache)
    dropped: list[Dropped] = []
    kept: set[str] = set()
    for row, length in zip(prompts.rows(), lengths, strict=True):
        if length <= limit:
            kept.add(row.id)
            continue
        reason = f"{length} ids, the limit is {limit}"
        if on_long is OnLong.ERROR:
            raise DataError(f"row {row.id!r} is too long: {reason}; raise the limit or filter")
        dropped.append(Dropped(id=row.id, length=length, reason=reason))
    if not kept:
        raise DataError(
            f"no rows left: all {len(dropped)} are longer than {limit} ids (the shortest has "
            f"{min((row.length for row in dropped), default=0)}); raise the limit"
        )
    return Filtered(kept=FilteredSource(prompts, kept=frozenset(kept)), dropped=tuple(dropped))


def _lengths(
    prompts: PromptSource, tokenizer: Tokenizer, limit: int, cache: Cache | None
) -> tuple[int, ...]:
    key = "/".join([prompts.identity, tokenizer.identity, str(limit)])
    if cache is not None and key in cache:
        return cache[key]
    lengths = tuple(len(tokenizer.render(row.messages)) for row in prompts.rows())
    if cache is not None:
        cache[key] = lengths
    return lengths
