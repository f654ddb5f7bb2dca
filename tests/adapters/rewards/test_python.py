"""A user's function in each style, and what its results become."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hexpo.adapters.rewards import python
from hexpo.adapters.rewards.python.grader import find, make
from hexpo.adapters.rewards.wire.worker import read
from hexpo.domain.errors import RewardUnavailable

GRADERS = Path(__file__).parents[2] / "data" / "rewards" / "graders.py"


def sample(**fields: Any) -> Mapping[str, Any]:
    """What a grader process gets for one trajectory."""
    return {
        "id": "row",
        "prompt": "2 + 2?",
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "answer": "4",
        "truth": "4",
        "source": "openai/gsm8k",
        "extra": {},
        "answer_tokens": 3,
        "stop": "stop",
        "answer_ids": [5, 6, 7],
        **fields,
    }


def grade(name: str, of: Mapping[str, Any], **options: Any) -> Any:
    settings = {"arguments": {}, "truth_as": "truth", "chat": True, **options}
    return make(function=f"{GRADERS}:{name}", **settings)(of)


def test_a_hexpo_function_gets_what_it_names_and_the_rows_columns() -> None:
    """K5: tokens over all turns are there by name; a column never takes an argument's place."""
    extra = {"column": "mine", "answer": "not this", "unnamed": 1}
    result = grade("everything", sample(extra=extra))
    assert result["answer_tokens"] == 3
    message = {"role": "user", "content": "2 + 2?"}
    assert result["seen"] == [
        "2 + 2?", "4", "4", "stop", [message], "openai/gsm8k", "row", "mine",
    ]  # fmt: skip


def test_a_verl_file_is_taken_as_it_is() -> None:
    """Day one of a verl user: its reward files need no change."""
    of = sample(extra={"extra_info": {"index": 9}, "ability": "math"})
    assert grade("compute_score", of) == {"score": 1.0, "index": 9}
    assert grade("compute_score", {**of, "answer": "5"}) == {"score": 0.0, "index": 9}


def test_a_trl_function_is_taken_as_it_is_with_lists_of_one() -> None:
    """Day one of a TRL user: messages in, columns by name, None for a sample of another kind."""
    assert grade("trl_match", sample(), truth_as="solution") == 1.0
    assert grade("trl_match", sample(answer="5"), truth_as="solution") == 0.0
    assert grade("trl_lengths", sample(extra={"level": 1})) == 3
    assert grade("trl_plain", sample(answer="2 + 2? Four"), chat=False) == 1.0
    with pytest.raises(NotImplementedError, match="not its kind"):
        grade("trl_lengths", sample(extra={"level": 2}))


def test_an_asynchronous_function_is_awaited_and_gets_the_configured_arguments() -> None:
    """M2: `arguments` reach every call."""
    assert grade("patient", sample(), arguments={"worth": 0.5}) == 0.5


def test_a_function_is_found_by_file_by_module_and_by_dotted_path() -> None:
    """The three ways to write it are one."""
    assert find("math:sqrt") is find("math.sqrt")
    assert find(f"{GRADERS}:known")("?", "a", "a")["score"] == 1.0


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nowhere.py:score", "there is no file 'nowhere.py'"),
        (f"{GRADERS}:missing", "no function 'missing'; it has .*compute_score"),
        ("no.such.module.score", "No module named"),
        ("score", "neither file.py:name nor package.module.name"),
        (f"{GRADERS}:strange", r"takes \(text\); known are reward\(prompt, answer, truth"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_when_built(function: str, says: str) -> None:
    """M3: the error names the function and comes before any model loads."""
    with pytest.raises(RewardUnavailable, match=says) as caught:
        python.build(python.Config(function=function))
    assert function in str(caught.value)


def test_code_that_raises_while_loading_is_refused_with_its_own_error(tmp_path: Path) -> None:
    """M3: the user's traceback place is in the message."""
    file = tmp_path / "mine.py"
    file.write_text("x = 1\ny = x / 0\n")
    with pytest.raises(RewardUnavailable, match=r"ZeroDivisionError.*mine\.py, line 2"):
        python.build(python.Config(function=f"{file}:score"))


def test_a_signature_that_is_none_is_refused_without_a_place_of_ours(tmp_path: Path) -> None:
    """M3: the user looks in the own file, not in hexpo's."""
    file = tmp_path / "mine.py"
    file.write_text("def score(text, gold):\n    return 0\n")
    with pytest.raises(RewardUnavailable, match=r"it takes \(text, gold\); known are") as caught:
        python.build(python.Config(function=f"{file}:score"))
    assert "grader.py" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"bound_seconds": 0.0}, {"workers": 0}])
def test_bounds_outside_their_meaning_are_refused(bad: dict[str, Any]) -> None:
    """M4."""
    with pytest.raises(ValueError, match="must be"):
        python.Config(function="a.b", **bad)


class _Scalar:
    """A number of another library, as numpy's and torch's are."""

    def __float__(self) -> float:
        return 0.25


def test_every_kind_of_number_is_a_score_and_nothing_else_is() -> None:
    """K1: what is no finite number is a failure, with its text."""
    for given, value in [(True, 1.0), (0, 0.0), (0.5, 0.5), (_Scalar(), 0.25), (-2, -2.0)]:
        assert read(given) == ("scored", value, {}, {})
    for bad in ["1.0", None, [1.0], float("inf"), float("nan"), 10**400, 1j, b"1"]:
        kind, cause, message = read(bad)
        assert (kind, cause) == ("failed", "BAD_RESULT")
        assert repr(bad)[:100] in message


def test_parts_that_are_no_finite_numbers_go_to_extra_as_plain_values() -> None:
    """K4: and the parent needs none of the grader's own types to read them."""
    parts = {"score": 1, "good": True, "bad": float("nan"), "kept": [{"a": _Scalar}], 3: "x"}
    kind, value, components, extra = read(parts)
    assert (kind, value, components) == ("scored", 1.0, {"good": 1.0})
    assert str(extra.pop("bad")) == "nan"
    assert extra == {"kept": [{"a": repr(_Scalar)}], "3": "x"}
