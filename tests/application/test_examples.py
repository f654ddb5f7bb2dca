"""Rows that bring answers: which ids are learnt, what is left out, what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hexpo.adapters.prompts.wire.order import OrderedRows
from hexpo.application.examples import ExampleReader, Form, readable
from hexpo.application.filtering import OnLong
from hexpo.application.ports.tokenizer import Rendered
from hexpo.domain.batch.examples import Example
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Message, Prompt

USER, ASSISTANT, END = 1000, 1001, 1002


class Letters:
    """A mark before each message, its letters, and an end."""

    identity, stop_ids, vocabulary = "letters", (END,), 2000

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (*self.render_answers(messages).ids, ASSISTANT)

    def render_answers(self, messages: Sequence[Message]) -> Rendered:
        ids, answered = list[int](), list[bool]()
        for message in messages:
            is_answer = message.role == "assistant"
            own = [*map(ord, message.content), END]
            ids += [ASSISTANT if is_answer else USER, *own]
            answered += [False, *[is_answer] * len(own)]
        return Rendered(tuple(ids), tuple(answered))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(index) for index in ids if index < USER)

    def save(self, folder: Path) -> None: ...


def read(form: Form, row: Prompt, *, limit: int = 100) -> tuple[Example, ...]:
    return ExampleReader(form=form, tokenizer=Letters(), limit=limit).read(row)


def asked(extra: Mapping[str, Any], *, truth: Any = None) -> Prompt:
    return Prompt(id="r", messages=(Message("user", "q"),), truth=truth, extra=extra)


def learnt(example: Example) -> str:
    """The letters that are learnt; an end token is a full stop."""
    ids = example.tokens[example.action].tolist()
    return "".join("." if one == END else chr(one) for one in ids)


DIALOGUE = (
    Message("user", "a"),
    Message("assistant", "b"),
    Message("user", "c"),
    Message("assistant", "d"),
)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (asked({"answer": "yes"}), "yes."),
        (asked({"answer": 12}), "12."),
        (asked({}, truth="7"), "7."),
        (asked({"answer": "yes"}, truth="7"), "yes."),
        (Prompt(id="r", messages=DIALOGUE), "b.d."),
        (Prompt(id="r", messages=DIALOGUE, extra={"learnt": [False, True]}), "d."),
        (Prompt(id="r", messages=DIALOGUE[:3], extra={"answer": "e"}), "e."),
        (
            asked({"answer": [{"role": "assistant", "content": "x"},
                              {"role": "tool", "content": "t"},
                              {"role": "assistant", "content": "y"}]}),
            "x.y.",
        ),
    ],
)  # fmt: skip
def test_answers_are_learnt_and_nothing_else(row: Prompt, text: str) -> None:
    """D7, O11: with their end tokens; a given answer alone, or all of a whole conversation."""
    (example,) = read(Form.ANSWERS, row)
    assert learnt(example) == text


def test_a_pair_is_two_rows_of_the_same_question() -> None:
    """X7; rows of TRL repeat the question before each answer."""
    question, better = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "A"})
    row = asked({"chosen": [question, better], "rejected": "B"})
    chosen, rejected = read(Form.PAIRS, row)
    assert (learnt(chosen), learnt(rejected)) == ("A.", "B.")
    assert (chosen.chosen, rejected.chosen) == (True, False)
    assert chosen.prompt.tolist() == rejected.prompt.tolist() == [USER, ord("q"), END, ASSISTANT]


@pytest.mark.parametrize(("label", "good"), [(True, True), (0, False), (1, True), (False, False)])
def test_a_label_says_whether_an_answer_is_good(label: Any, good: bool) -> None:
    """KTO."""
    (example,) = read(Form.JUDGED, asked({"answer": "x", "label": label}))
    assert example.chosen is good


@pytest.mark.parametrize(
    ("form", "extra", "words"),
    [
        (Form.ANSWERS, {}, "'answer': missing; the row has no further field"),
        (Form.PAIRS, {"chosen": "x"}, "'rejected': missing; the row has chosen"),
        (Form.PAIRS, {"chosen": [], "rejected": "x"}, "'chosen': a text or a list"),
        (
            Form.PAIRS,
            {"chosen": [{"role": "user", "content": "x"}], "rejected": "y"},
            "'chosen': must begin and end with a message of the assistant",
        ),
        (Form.JUDGED, {"answer": "x", "label": 2}, "'label': true"),
    ],
)
def test_a_bad_field_is_named(form: Form, extra: Mapping[str, Any], words: str) -> None:
    """E3."""
    with pytest.raises(DataError, match="row 'r'") as raised:
        read(form, asked(extra))
    assert words in str(raised.value)


def test_as_many_switches_as_answers_are_needed() -> None:
    """O11: which answers of a conversation are learnt."""
    with pytest.raises(DataError, match="each of 2 answers"):
        read(Form.ANSWERS, Prompt(id="r", messages=DIALOGUE, extra={"learnt": [True]}))


def test_rows_that_are_too_long_or_teach_nothing_are_left_out_and_counted() -> None:
    """D7, O12: a row is never cut."""
    rows = [
        Prompt(id="short", messages=DIALOGUE),
        Prompt(id="long", messages=(*DIALOGUE, Message("user", "x" * 50), DIALOGUE[1])),
        Prompt(id="mute", messages=DIALOGUE, extra={"learnt": [False, False]}),
    ]
    source = OrderedRows(rows, seed=0, shuffle=True, what="rows")
    reader = ExampleReader(form=Form.ANSWERS, tokenizer=Letters(), limit=20)
    found = readable(source, reader, on_long=OnLong.FILTER)
    assert [row.id for row in found.source.rows()] == ["short"]
    assert {one.id: one.reason for one in found.dropped} == {
        "long": "67 ids, the limit is 20",
        "mute": "no answer to learn",
    }
    with pytest.raises(DataError, match="'long': 67 ids"):
        readable(source, reader, on_long=OnLong.ERROR)
    with pytest.raises(DataError, match="no rows left of 3: row 'short' has 12 ids"):
        readable(source, attrs_limit(reader, 5), on_long=OnLong.FILTER)


def attrs_limit(reader: ExampleReader, limit: int) -> ExampleReader:
    return ExampleReader(form=reader.form, tokenizer=reader.tokenizer, limit=limit)
