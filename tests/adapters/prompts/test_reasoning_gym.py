"""Procedural questions: which are asked, and which are held out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hexpo.adapters.prompts.reasoning_gym import Config, Split, build
from hexpo.adapters.rewards.reasoning_gym.grader import make
from hexpo.domain.errors import ConfigurationError, DataError

pytest.importorskip("reasoning_gym")

ADDITION: dict[str, Any] = {
    "task": "chain_sum",
    "options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "matching": r"(?P<a>\d+) \+ (?P<b>\d+) =",
    "template": "What is {a} + {b}? Answer with just the number.",
    "split_seed": 11,
}


def texts(**settings: Any) -> list[str]:
    source = build(Config(**{**ADDITION, **settings}), seed=0)
    return [row.messages[-1].content for row in source.rows()]


def test_one_digit_addition_splits_into_75_and_25_questions_that_share_none() -> None:
    """The demonstration's data: all of 0 + 0 to 9 + 9, each once."""
    train = texts(split=Split.TRAIN, size=75)
    held_out = texts(split=Split.HELD_OUT, size=25)
    everything = {
        f"What is {a} + {b}? Answer with just the number." for a in range(10) for b in range(10)
    }
    assert len(train) == len(set(train)) == 75
    assert len(held_out) == len(set(held_out)) == 25
    assert set(train) | set(held_out) == everything


def test_no_seed_and_no_size_moves_a_question_to_the_other_side() -> None:
    """E3: validation questions stay unseen, however the sources are set."""
    held_out = set(texts(split=Split.HELD_OUT, size=20, seed=3))
    for seed in (0, 1, 2):
        assert held_out.isdisjoint(texts(split=Split.TRAIN, size=60, seed=seed))
    assert held_out <= set(texts(split=Split.ALL, size=100))


def test_two_digit_addition_is_the_same_with_other_options() -> None:
    """The harder run's data."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
    train = texts(split=Split.TRAIN, size=300, options=options)
    held_out = texts(split=Split.HELD_OUT, size=100, options=options)
    assert set(train).isdisjoint(held_out)
    assert all(re.fullmatch(r"What is \d\d \+ \d\d\? Answer .*", text) for text in train)


def test_a_row_carries_what_its_grader_needs() -> None:
    """The task scores the answer to its own entry, however the question was worded."""
    grade = make("last_integer", None, False)
    for row in build(Config(**ADDITION, size=20), seed=0).rows():
        a, b = map(int, re.findall(r"\d+", row.messages[-1].content))
        assert row.truth == str(a + b)
        sample = {"extra": dict(row.extra)}
        assert grade({**sample, "answer": f"It is {a + b}."})["score"] == 1.0
        assert grade({**sample, "answer": f"It is {a + b + 1}."})["score"] == 0.0


def test_ids_name_task_seed_and_entry_and_stay_when_the_size_grows() -> None:
    """O13: stable between runs."""
    few = [row.id for row in build(Config(task="chain_sum", size=3, seed=4), seed=0).rows()]
    more = [row.id for row in build(Config(task="chain_sum", size=9, seed=4), seed=1).rows()]
    assert few == ["chain_sum:4:0", "chain_sum:4:1", "chain_sum:4:2"]
    assert more[:3] == few


def test_the_tasks_own_question_is_asked_without_a_template() -> None:
    """And a system message stands before it."""
    row = next(build(Config(task="chain_sum", size=1, system="Be brief."), seed=0).rows())
    assert row.messages[0].content == "Be brief."
    assert row.messages[1].content == row.extra["entry"]["question"]


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"task": "no_such"}, ConfigurationError, "task 'no_such'.*not registered"),
        ({"options": {"max_digit": 1}}, ConfigurationError, "max_digit"),
        ({"options": {"min_terms": 0}}, ConfigurationError, "min_terms must be positive"),
        ({"matching": "("}, ConfigurationError, "`matching` '\\(' is no regular expression"),
        ({"template": "{c}"}, ConfigurationError, "names 'c'; it may name a, b, difficulty"),
        ({"template": "{a"}, ConfigurationError, "can't be filled"),
        ({"size": 101}, DataError, "gave 100 distinct questions, 101 are asked for; lower `size`"),
        ({"matching": "never"}, DataError, "gave 0 distinct questions"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_to_do(
    settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    """M3, E2."""
    with pytest.raises(error, match=says):
        texts(**{"size": 100, **settings})
