"""What every prompt source promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.prompts import jsonl, parquet, reasoning_gym
from hexpo.adapters.prompts.wire.order import OrderedRows
from hexpo.application.ports.prompts import PromptSource
from hexpo.domain.errors import DataError
from hexpo.domain.trajectory import Message, Prompt
from hexpo.entrypoints.testing.prompts import CONTRACT, Check

Open = Callable[..., PromptSource]
"""Opens a source of `rows` rows; takes `seed`, `shuffle` and `change` (another content)."""

RECORDS = [{"prompt": f"{i} + {i}?", "truth": str(2 * i), "level": i} for i in range(12)]


def _records(rows: int, *, change: bool) -> list[dict[str, Any]]:
    return [{**row, "truth": "?"} if change else row for row in RECORDS[:rows]]


def open_jsonl(folder: Path) -> Open:
    def opened(*, rows: int = 7, seed: int = 1, shuffle: bool = True, change: bool = False) -> Any:
        file = folder / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, _records(rows, change=change))))
        return jsonl.build(jsonl.Config(paths=(str(file),), shuffle=shuffle), seed=seed)

    return opened


def open_parquet(folder: Path) -> Open:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as files

    def opened(*, rows: int = 7, seed: int = 1, shuffle: bool = True, change: bool = False) -> Any:
        file = folder / "rows.parquet"
        table = pyarrow.Table.from_pylist(_records(rows, change=change))
        files.write_table(table, file, row_group_size=3)
        return parquet.build(parquet.Config(paths=(str(file),), shuffle=shuffle), seed=seed)

    return opened


def open_gym(folder: Path) -> Open:
    pytest.importorskip("reasoning_gym")

    def opened(*, rows: int = 7, seed: int = 1, shuffle: bool = True, change: bool = False) -> Any:
        config = reasoning_gym.Config(
            task="chain_sum", size=rows, shuffle=shuffle, seed=5 if change else 4
        )
        return reasoning_gym.build(config, seed=seed)

    return opened


@pytest.fixture(params=[open_jsonl, open_parquet, open_gym], ids=["jsonl", "parquet", "gym"])
def open_source(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    opener: Open = request.param(tmp_path)
    return opener


def ids(source: PromptSource, count: int) -> list[str]:
    return [source.draw().id for _ in range(count)]


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_source_keeps_its_contract(check: Check, open_source: Open) -> None:
    """E3, E4, E5, O17."""
    check(lambda seed: open_source(seed=seed))


def test_rows_come_once_each_in_file_order_and_draws_change_nothing(open_source: Open) -> None:
    """E3: and unshuffled drawing is file order, for ever."""
    source = open_source(shuffle=False)
    listed = [row.id for row in source.rows()]
    assert len(source) == len(listed) == len(set(listed)) == 7
    assert ids(source, 10) == [*listed, *listed[:3]]
    assert [row.id for row in source.rows()] == listed


def test_identity_changes_with_rows_seed_and_order_and_with_nothing_else(open_source: Open) -> None:
    """E5: a checkpoint remembers it."""
    first = open_source()
    identity = first.identity
    ids(first, 3)
    assert first.identity == open_source().identity == identity
    others = [
        open_source(seed=2),
        open_source(rows=6),
        open_source(shuffle=False),
        open_source(change=True),
    ]
    assert len({identity, *(other.identity for other in others)}) == 5


def prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"{i}", messages=(Message("user", "same"),)) for i in range(count)]


@given(st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 40), st.integers(1, 20))
def test_any_cut_of_any_reading_goes_on_as_if_it_were_none(
    rows: int, seed: int, before: int, after: int
) -> None:
    """E4, O17: one row and long readings included."""
    whole = OrderedRows(prompts(rows), seed=seed, shuffle=True, what="rows")
    straight = ids(whole, before + after)
    first = OrderedRows(prompts(rows), seed=seed, shuffle=True, what="rows")
    ids(first, before)
    second = OrderedRows(prompts(rows), seed=seed, shuffle=True, what="rows")
    second.seek(first.position)
    assert ids(second, after) == straight[before:]


def test_equal_texts_stay_two_prompts_and_equal_ids_are_refused() -> None:
    """O13: groups go by id, never by text."""
    source = OrderedRows(prompts(2), seed=0, shuffle=False, what="rows")
    assert ids(source, 2) == ["0", "1"]
    with pytest.raises(DataError, match="two rows have the id '0'"):
        OrderedRows(prompts(1) * 2, seed=0, shuffle=False, what="rows")


def test_no_row_is_an_error() -> None:
    """E2."""
    with pytest.raises(DataError, match="rows: there is no row"):
        OrderedRows([], seed=0, shuffle=True, what="rows")
