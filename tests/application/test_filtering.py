"""The length filter measures what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.application.filtering import Cache, Dropped, OnLong, filter_by_length
from hexpo.application.ports.prompts import Position
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Message, Prompt

LIMIT = 10


class ToyTokenizer:
    """1 id a word, 3 around the message, 1 to start the answer, 4 for tools, 6 an image."""

    vocabulary = 100
    stop_ids = (0,)

    def __init__(self, *, around: int = 3) -> None:
        self.around = around
        self.rendered = 0

    @property
    def identity(self) -> str:
        return f"toy {self.around}"

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self.rendered += 1
        length = 1
        for message in messages:
            if message.role == "tools":
                length += 4
                continue
            words = message.content.split()
            length += self.around + sum(6 if word == "<image>" else 1 for word in words)
        return (1,) * length

    def decode(self, ids: Sequence[int]) -> str:
        return ""

    def save(self, folder: Path) -> None: ...


class Listed:
    """A source that reads a list over and over."""

    def __init__(self, rows: Sequence[Prompt], *, identity: str = "listed") -> None:
        self._rows = rows
        self.identity = identity
        self.position = Position()

    def draw(self) -> Prompt:
        row = self._rows[self.position.index]
        last = self.position.index + 1 == len(self._rows)
        epoch, index = self.position.epoch, self.position.index
        self.position = Position(epoch + 1, 0) if last else Position(epoch, index + 1)
        return row

    def seek(self, position: Position) -> None:
        self.position = position

    def rows(self) -> Iterator[Prompt]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def row(name: str, words: int, *, tools: bool = False, images: int = 0) -> Prompt:
    text = " ".join(["word"] * words + ["<image>"] * images)
    first = (Message("tools", "add"),) if tools else ()
    return Prompt(id=name, messages=(*first, Message("user", text)))


ROWS = [row("A", 5), row("B", 5, tools=True), row("C", 7), row("D", 2, images=1), row("E", 6)]


def test_the_filter_keeps_a_and_e_in_order_and_reports_three_by_id_length_and_reason() -> None:
    """O12, E1, E2: lengths A 9, B 13, C 11, D 12, E 10; limit 10."""
    filtered = filter_by_length(Listed(ROWS), ToyTokenizer(), limit=LIMIT)
    assert [kept.id for kept in filtered.kept.rows()] == ["A", "E"]
    assert len(filtered.kept) == 2
    assert [kept.id for kept in (filtered.kept.draw() for _ in range(5))] == [
        "A",
        "E",
        "A",
        "E",
        "A",
    ]
    assert filtered.dropped == (
        Dropped(id="B", length=13, reason="13 ids, the limit is 10"),
        Dropped(id="C", length=11, reason="11 ids, the limit is 10"),
        Dropped(id="D", length=12, reason="12 ids, the limit is 10"),
    )


def test_error_mode_stops_and_names_the_first_long_row_its_length_and_the_limit() -> None:
    """O12."""
    with pytest.raises(DataError, match=r"row 'B' is too long: 13 ids, the limit is 10"):
        filter_by_length(Listed(ROWS), ToyTokenizer(), limit=LIMIT, on_long=OnLong.ERROR)
    short = [ROWS[0], ROWS[4]]
    done = filter_by_length(Listed(short), ToyTokenizer(), limit=LIMIT, on_long=OnLong.ERROR)
    assert done.dropped == ()


def test_no_row_left_is_an_error_and_not_an_empty_loader() -> None:
    """O12, E2."""
    with pytest.raises(DataError, match=r"no rows left: all 5 are longer than 8 .*shortest has 9"):
        filter_by_length(Listed(ROWS), ToyTokenizer(), limit=8)


def test_a_cache_is_used_again_only_for_the_same_rows_template_and_limit() -> None:
    """O12: and gives the same rows."""
    cache: Cache = {}

    def kept(tokenizer: ToyTokenizer, limit: int, identity: str = "listed") -> list[str]:
        tokenizer.rendered = 0
        source = Listed(ROWS, identity=identity)
        done = filter_by_length(source, tokenizer, limit=limit, cache=cache)
        return [prompt.id for prompt in done.kept.rows()]

    toy, other = ToyTokenizer(), ToyTokenizer(around=2)
    assert (kept(toy, 10), toy.rendered) == (["A", "E"], 5)
    assert (kept(toy, 10), toy.rendered) == (["A", "E"], 0)
    assert (kept(toy, 11), toy.rendered) == (["A", "C", "E"], 5)
    assert (kept(other, 10), other.rendered) == (["A", "C", "E"], 5)
    assert (kept(toy, 10, "others"), toy.rendered) == (["A", "E"], 5)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 20))
def test_what_is_drawn_is_the_whole_reading_without_the_long_rows(
    words: list[int], start: int
) -> None:
    """E1, E4: no kept row is too long later, order stays, and a position goes on exactly there."""
    rows = [row(f"{i}", n) for i, n in enumerate(words)]
    tokenizer = ToyTokenizer()
    if min(words) > 6:
        with pytest.raises(DataError, match="no rows left"):
            filter_by_length(Listed(rows), tokenizer, limit=LIMIT)
        return
    kept = filter_by_length(Listed(rows), tokenizer, limit=LIMIT).kept
    drawn = [kept.draw() for _ in range(start)]
    place = kept.position
    rest = [kept.draw() for _ in range(10)]
    whole = Listed(rows)
    short = (r for r in iter(whole.draw, None) if len(tokenizer.render(r.messages)) <= LIMIT)
    assert drawn + rest == list(islice(short, start + 10))
    kept.seek(place)
    assert [kept.draw() for _ in range(10)] == rest


def test_identity_follows_the_rows_that_are_left() -> None:
    """E5: a checkpoint made with another limit is told apart where it matters."""

    def identity(limit: int, of: str = "listed") -> str:
        source = Listed(ROWS, identity=of)
        return filter_by_length(source, ToyTokenizer(), limit=limit).kept.identity

    assert identity(10) == identity(10)
    assert identity(10) != identity(11)
    assert identity(10) != identity(10, "others")
