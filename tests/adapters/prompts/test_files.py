"""The row schema: hexpo's own rows, verl's and others' by field names; bad rows are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexpo.adapters.prompts import jsonl, parquet
from hexpo.application.ports.prompts import PromptSource
from hexpo.domain.errors import ConfigurationError, DataError
from hexpo.domain.trajectory import Message, Prompt

OF_VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 17},
}

OF_GSM8K = [
    {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    {"question": "A thousand?", "answer": "#### no, really:\n#### 1,000 "},
]


def write(folder: Path, *records: Any, name: str = "rows.jsonl") -> str:
    file = folder / name
    if name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as files

        files.write_table(pyarrow.Table.from_pylist(list(records)), file)
    else:
        file.write_text("\n".join(map(json.dumps, records)))
    return str(file)


def opened(*paths: str, **settings: Any) -> PromptSource:
    if paths[0].endswith(".parquet"):
        return parquet.build(parquet.Config(paths=paths, **settings), seed=0)
    return jsonl.build(jsonl.Config(paths=paths, **settings), seed=0)


def only(source: PromptSource) -> Prompt:
    [row] = source.rows()
    return row


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_hexpos_own_row_needs_a_prompt_and_a_truth(tmp_path: Path, name: str) -> None:
    """E7: the rest has defaults or goes to the grader."""
    path = write(tmp_path, {"prompt": "2 + 2?", "truth": "4", "level": {"of": 3}}, name=name)
    assert only(opened(path)) == Prompt(
        id=f"{name}:1",
        messages=(Message("user", "2 + 2?"),),
        truth="4",
        source="",
        extra={"level": {"of": 3}},
    )


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_verl_row_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    """E7: nested fields from both formats, without a setting."""
    row = only(opened(write(tmp_path, OF_VERL, name=name)))
    assert row.messages == (Message("system", "Be brief."), Message("user", "2 + 2?"))
    assert (row.truth, row.source) == ("4", "openai/gsm8k")
    assert row.extra == {key: OF_VERL[key] for key in ("ability", "reward_model", "extra_info")}


def test_gsm8k_is_read_by_field_names_and_the_mark_before_the_answer(tmp_path: Path) -> None:
    """E7: the last mark counts."""
    path = write(tmp_path, *OF_GSM8K)
    source = opened(path, prompt="question", truth="answer", truth_after="####")
    first, second = source.rows()
    assert (first.truth, second.truth) == ("4", "1,000")
    assert first.messages == (Message("user", "Two and two?"),)
    assert first.extra == {}


def test_template_system_and_limit_shape_what_is_asked(tmp_path: Path) -> None:
    """M2: each has an effect; braces in a row are its own."""
    rows = [{"prompt": "{x}?", "truth": "1", "unit": "km"}, {"prompt": "y?", "truth": "2"}]
    path = write(tmp_path, *rows)
    template = "{prompt} In {unit}, as \\boxed{{}}."
    row = only(opened(path, template=template, system="Think.", limit=1))
    asked = "{x}? In km, as \\boxed{}."
    assert row.messages == (Message("system", "Think."), Message("user", asked))
    with pytest.raises(ConfigurationError, match="names 'unit'; it may name prompt, truth"):
        opened(path, template=template)


def test_a_rows_own_system_message_stays(tmp_path: Path) -> None:
    """`system` is for rows that have none."""
    row = only(opened(write(tmp_path, OF_VERL), system="Other."))
    assert row.messages[0] == Message("system", "Be brief.")


def test_ids_come_from_a_field_or_from_file_and_row(tmp_path: Path) -> None:
    """O13: stable between runs; a blank line counts as a row's line."""
    rows = [{"prompt": "a", "truth": "", "id": 7}, {"prompt": "b", "truth": "", "uid": {"x": "q"}}]
    one, other = write(tmp_path, rows[0]), write(tmp_path, rows[1], name="more.jsonl")
    Path(other).write_text("\n\n" + Path(other).read_text())
    assert [row.id for row in opened(one, other).rows()] == ["7", "more.jsonl:3"]
    assert only(opened(other, id="uid.x")).id == "q"


def test_a_star_reads_files_in_order_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    for folder in "ab":
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, {"prompt": folder, "truth": ""})
        write(tmp_path / folder, {"prompt": folder, "truth": ""}, name="more.jsonl")
    found = [row.id for row in opened(f"{tmp_path}/a/*.jsonl").rows()]
    assert found == ["more.jsonl:1", "rows.jsonl:1"]
    with pytest.raises(DataError, match="name a field with distinct ids by `id`"):
        opened(f"{tmp_path}/*/rows.jsonl")


GOOD = {"prompt": "a?", "truth": "1"}


@pytest.mark.parametrize(
    ("bad", "settings", "says"),
    [
        ({"truth": "1"}, {}, "field 'prompt': missing; the row has truth"),
        ({"prompt": None, "truth": "1"}, {}, "field 'prompt': missing"),
        ({"prompt": " ", "truth": "1"}, {}, "field 'prompt': the question is empty"),
        ({"prompt": 5, "truth": "1"}, {}, "a text or a list of messages is needed, this is 5"),
        ({"prompt": [], "truth": "1"}, {}, "a text or a list of messages is needed"),
        ({"prompt": "a"}, {}, "field 'truth': missing; the row has prompt"),
        ({"prompt": "a", "truth": "1"}, {"truth": "answer"}, "field 'answer': missing"),
        ({"prompt": "a", "truth": "1"}, {"source": "set"}, "field 'set': missing"),
        ({"prompt": "a", "truth": "1"}, {"id": "uid"}, "field 'uid': missing"),
        ({"prompt": "a", "truth": "1", "id": 1.5}, {}, "field 'id': an id is a text"),
        ({"prompt": "a", "truth": "1"}, {"truth_after": "####"}, "nothing follows '####'"),
        ({"prompt": "a", "truth": "1 #### "}, {"truth_after": "####"}, "nothing follows '####'"),
        ({"prompt": "a", "truth": 1}, {"truth_after": "####"}, "needs a text, this is int"),
        ({"prompt": ["a"], "truth": "1"}, {}, r"field 'prompt\[0\]': a message is {role, content}"),
        (
            {"prompt": [{"role": "human", "content": "a"}], "truth": "1"},
            {},
            r"field 'prompt\[0\].role': 'human' is none of system, user, assistant, tool",
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "truth": "1"},
            {},
            r"field 'prompt\[0\].content': a text is needed.*media are not read",
        ),
        (
            {"prompt": [{"role": "user", "content": "a", "images": 1}], "truth": "1"},
            {},
            r"field 'prompt\[0\].images': a message has only role and content",
        ),
        ({"prompt": "a\ud83d", "truth": "1"}, {}, "half a surrogate pair is no text"),
        ([1], {}, "a row is an object with fields, this is list"),
    ],
)
def test_a_bad_row_is_refused_with_file_number_and_field(
    tmp_path: Path, bad: Any, settings: dict[str, Any], says: str
) -> None:
    """E7: the second row is the bad one."""
    good = {**GOOD, "answer": "1", "set": "s", "uid": "u", "truth": "1 #### 1"}
    path = write(tmp_path, good, bad)
    with pytest.raises(DataError, match=says) as caught:
        opened(path, **settings)
    assert str(caught.value).startswith(f"{path}, row 2, ")


def test_a_row_without_a_truth_is_read_where_none_is_needed(tmp_path: Path) -> None:
    """For sets that no grader compares with anything."""
    assert only(opened(write(tmp_path, {"prompt": "a"}), needs_truth=False)).truth is None


@pytest.mark.parametrize("line", [b"{", b'{"prompt": "\xff"}', b"nothing"])
def test_a_line_that_is_no_json_is_refused_with_its_number(tmp_path: Path, line: bytes) -> None:
    """E7."""
    file = tmp_path / "rows.jsonl"
    file.write_bytes(json.dumps(GOOD).encode() + b"\n" + line)
    with pytest.raises(DataError, match=r"rows.jsonl, row 2: the line is no JSON"):
        opened(str(file))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_missing_file_a_wrong_protocol_and_an_empty_set_are_errors(
    tmp_path: Path, kind: str
) -> None:
    """M3: the path and what to do."""
    with pytest.raises(DataError, match="there is no such file; check `paths`"):
        opened(str(tmp_path / f"none.{kind}"))
    with pytest.raises(DataError, match="check `paths`"):
        opened(str(tmp_path / f"none*.{kind}"))
    with pytest.raises(DataError, match="check `paths`"):
        opened(f"nosuch://a.{kind}")
    with pytest.raises(DataError, match="check `paths`"):
        opened(str(tmp_path) + f"/../{tmp_path.name}", str(tmp_path / f"x.{kind}"))
    if kind == "jsonl":
        empty = tmp_path / "empty.jsonl"
        empty.write_text("\n\n")
        with pytest.raises(DataError, match="there is no row"):
            opened(str(empty))


def test_a_damaged_parquet_file_is_an_error(tmp_path: Path) -> None:
    """M3: the file is named."""
    pytest.importorskip("pyarrow")
    file = tmp_path / "rows.parquet"
    file.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(DataError, match=r"rows.parquet, after row 0: not readable as Parquet"):
        opened(str(file))


def test_settings_outside_their_meaning_are_refused() -> None:
    """M4."""
    for bad in ({"paths": ()}, {"paths": ("a",), "limit": 0}):
        with pytest.raises(ValueError, match=r"Length|must be"):
            jsonl.Config(**bad)
