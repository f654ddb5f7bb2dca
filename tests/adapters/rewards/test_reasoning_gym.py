"""What of an answer is graded, and how strictly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.rewards.reasoning_gym import Config, Extract, build
from hexpo.adapters.rewards.reasoning_gym.grader import extract_from, make
from hexpo.domain.errors import ConfigurationError

pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", "7"),
        ("3 + 4 = 7.", "7"),
        ("**-7**", "-7"),
        ("10-3", "3"),
        ("(2)-3", "3"),
        ("It is 1,000 in all", "1000"),
        ("7.0", "7"),
        ("first 7, then 3.5", None),
        ("seven", None),
        ("", None),
    ],
)
def test_the_last_number_counts_if_it_is_whole(text: str, found: str | None) -> None:
    """The digits of 3.5 are no answer of 5."""
    assert extract_from(text, "last_integer", None) == found


@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc .:\n"))
def test_a_whole_number_is_found_after_any_words(number: int, words: str) -> None:
    """Whatever is said before it."""
    assert extract_from(f"{words} {number}", "last_integer", None) == str(number)


def test_lines_patterns_and_the_whole_text_are_read_as_named() -> None:
    """Each way of `extract`; a text without it has no answer."""
    text = "first\n second \n\n"
    assert extract_from(text, "last_line", None) == "second"
    assert extract_from(text, "whole", None) == "first\n second"
    assert extract_from("<a>1</a><a>2</a>", "regex", "<a>(.*?)</a>") == "2"
    assert extract_from("x1x2", "regex", r"x\d") == "x2"
    assert extract_from("none", "regex", r"\d") is None
    assert extract_from(" \n", "last_line", None) is None
    assert extract_from("  ", "whole", None) is None


def test_partial_credit_can_be_refused() -> None:
    """17 for 7 is worth 0.5 to the task; an exact reward says 0."""
    entry = {"question": "3 + 4 =", "answer": "7", "metadata": {}}
    extra = {"task": "chain_sum", "options": {"max_terms": 2}, "entry": entry}

    def scores(answer: str) -> list[Any]:
        return [
            make("last_integer", None, partial)({"answer": answer, "extra": extra})
            for partial in (True, False)
        ]

    assert scores("17") == [{"score": 0.5, "extracted": 1.0}, {"score": 0.0, "extracted": 1.0}]
    assert scores("is 7") == [{"score": 1.0, "extracted": 1.0}] * 2
    assert scores("no idea") == [{"score": 0.0, "extracted": 0.0}] * 2


@pytest.mark.parametrize(
    "config",
    [
        Config(extract=Extract.REGEX),
        Config(pattern="x"),
        Config(extract=Extract.REGEX, pattern="("),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused_when_built(config: Config) -> None:
    """M2, M3."""
    with pytest.raises(ConfigurationError, match="`pattern`"):
        build(config)
