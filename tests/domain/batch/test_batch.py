"""The two tables: select, split, concatenate."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.batch import SCHEMA, Batch, Column, Kind, Sequences, Table
from hexpo.domain.batch.tables import even_sizes, rows_of
from hexpo.domain.errors import WrongBatch
from hexpo.entrypoints.testing.strategies import SplitBatch, batches, split_batches


def small(ids: list[int], lengths: list[int], **tokens: Tensor) -> Batch:
    sequences = Sequences.of({"id": torch.tensor(ids), "length": torch.tensor(lengths)})
    return Batch.of(sequences, tokens or {"token": torch.arange(sum(lengths))})


def equal(a: Batch, b: Batch) -> bool:
    return all(
        left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
        for left, right in ((a.columns, b.columns), (a.sequences.columns, b.sequences.columns))
    )


def row_tokens(batch: Batch) -> dict[int, list[int]]:
    """Each row's tokens by its id, computed row by row."""
    offsets, tokens = batch.offsets.tolist(), batch.columns["token"].tolist()
    return {
        row: tokens[offsets[place] : offsets[place + 1]]
        for place, row in enumerate(batch.sequences.ids.tolist())
    }


@given(batch=batches(), data=st.data())
def test_selecting_takes_each_rows_own_tokens(batch: Batch, data: st.DataObject) -> None:
    """B8: a row is known by its id, whatever its place."""
    order = data.draw(st.permutations(range(len(batch))))[: data.draw(st.integers(0, 6))]
    chosen, whole = batch.select(order), row_tokens(batch)
    assert chosen.sequences.ids.tolist() == batch.sequences.ids[torch.tensor(order).long()].tolist()
    assert all(whole[row] == tokens for row, tokens in row_tokens(chosen).items())


@given(case=split_batches())
def test_parts_put_together_are_the_batch(case: SplitBatch) -> None:
    """A1: nothing is lost or doubled by a split, in any order of rows."""
    back = torch.argsort(torch.cat(case.index))
    assert equal(Batch.cat(case.parts).select(back), case.batch)


@given(batch=batches(), data=st.data())
def test_places_masks_slices_and_lists_agree(batch: Batch, data: st.DataObject) -> None:
    """B8."""
    first, last = (data.draw(st.integers(-7, 7)) for _ in range(2))
    step = data.draw(st.sampled_from((None, 1, 2, -1)))
    places = list(range(len(batch)))[first:last:step]
    by_slice = batch.select(slice(first, last, step))
    assert equal(by_slice, batch.select(places))
    mask = torch.zeros(len(batch), dtype=torch.bool)
    mask[places] = True
    assert equal(batch.select(mask), batch.select(sorted(places)))
    assert equal(batch.select(mask.tolist()), batch.select(sorted(places)))


@given(batch=batches(min_rows=1))
def test_a_sequences_column_spreads_over_its_rows_tokens(batch: Batch) -> None:
    """B8."""
    spread = batch.column("id").tolist()
    want = [row for row, tokens in row_tokens(batch).items() for _ in tokens]
    assert spread == want
    assert batch.owner.tolist() == [batch.sequences.ids.tolist().index(row) for row in want]


def test_a_slice_shares_memory_and_an_index_copies() -> None:
    """X4."""
    batch = small([1, 2, 3], [2, 1, 3])
    whole = batch.columns["token"]
    assert batch.select(slice(1, 3)).columns["token"].data_ptr() == whole[2:].data_ptr()
    assert batch.select([1, 2]).columns["token"].data_ptr() != whole[2:].data_ptr()


def test_nine_rows_over_four_ranks_are_three_two_two_two() -> None:
    """O23.3."""
    batch = small(list(range(9)), [1] * 9)
    assert [len(part) for part in batch.chunk(4)] == [3, 2, 2, 2]
    assert equal(Batch.cat(batch.chunk(4)), batch)


def test_two_rows_over_four_ranks_leave_two_empty() -> None:
    """O23.3, O4."""
    assert [len(part) for part in small([1, 2], [3, 1]).chunk(4)] == [1, 1, 0, 0]
    with pytest.raises(WrongBatch, match="0 parts"):
        even_sizes(2, 0)


def test_sizes_that_do_not_add_up_are_refused() -> None:
    """M4."""
    for sizes in ([1], [3, -1]):
        with pytest.raises(WrongBatch, match="cannot split 2 rows"):
            small([1, 2], [1, 1]).split(sizes)


def test_columns_that_differ_are_not_concatenated() -> None:
    """X4: torch.cat would promote a dtype, and tensordict would raise a bare KeyError."""
    other = SCHEMA.with_columns(Column("token", Table.TOKENS, Kind.INPUT, torch.int16))
    plain = small([1], [1])
    narrow = Batch.of(
        Sequences.of({"id": torch.tensor([2]), "length": torch.tensor([1])}, other),
        {"token": torch.zeros(1, dtype=torch.int16)},
    )
    with pytest.raises(WrongBatch, match=r"'token' differs .*int16 \[\].*int64"):
        Batch.cat([plain, narrow])
    with pytest.raises(WrongBatch, match="differ in columns: position"):
        Batch.cat([plain, plain.with_tokens(position=torch.zeros(1, dtype=torch.int64))])
    with pytest.raises(WrongBatch, match="no tokens table"):
        Batch.cat([])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"token": torch.zeros(3, dtype=torch.int64)}, "first axis must be 2"),
        ({"token": torch.zeros(2)}, "float32, declared torch.int64"),
        ({"nonsense": torch.zeros(2)}, "'nonsense' is not in the schema"),
        ({"reward": torch.zeros(2, 2)}, r"trailing axes \(2,\), declared \(\)"),
        ({"reward": torch.tensor(1.0)}, "first axis must be 2"),
    ],
)
def test_misfitting_columns_are_refused_by_name(tokens: dict[str, Tensor], message: str) -> None:
    """X4."""
    with pytest.raises(WrongBatch, match=message):
        small([1], [2], **tokens)


def test_a_batch_needs_ids_lengths_and_known_names() -> None:
    """X4."""
    with pytest.raises(WrongBatch, match="no column 'length'"):
        Sequences.of({"id": torch.tensor([1])})
    with pytest.raises(WrongBatch, match="no sequences column 'score'; there are: id, length"):
        _ = small([1], [1]).sequences["score"]
    with pytest.raises(WrongBatch, match="no column 'value'"):
        small([1], [1]).column("value")
    with pytest.raises(WrongBatch, match="first axis must be 1"):
        small([1], [1]).sequences.with_columns(score=torch.zeros(2, dtype=torch.float64))


def test_new_columns_leave_the_old_table_as_it_was() -> None:
    """F9."""
    batch = small([1, 2], [1, 1])
    more = batch.with_tokens(reward=torch.ones(2))
    assert list(batch.columns) == ["token"]
    assert list(more.columns) == ["token", "reward"]
    scored = batch.sequences.with_columns(score=torch.ones(2, dtype=torch.float64))
    assert "score" in scored
    assert "score" not in batch.sequences


def test_a_batch_and_its_schema_survive_pickle() -> None:
    """X4."""
    batch = small([4, 9], [1, 2])
    back = pickle.loads(pickle.dumps(batch))
    assert equal(back, batch)
    assert back.sequences.schema == SCHEMA


def test_trailing_axes_may_be_free_or_fixed() -> None:
    """X5: a teacher's top-k, three-axis positions."""
    schema = SCHEMA.with_columns(
        Column("topk", Table.TOKENS, Kind.PREDICTED, torch.float32, (None,)),
        Column("axes", Table.TOKENS, Kind.INPUT, torch.int64, (3,)),
    )
    sequences = Sequences.of({"id": torch.tensor([1]), "length": torch.tensor([2])}, schema)
    batch = Batch.of(
        sequences, {"topk": torch.zeros(2, 5), "axes": torch.zeros(2, 3, dtype=torch.int64)}
    )
    assert batch.select([0]).columns["topk"].shape == (2, 5)
    with pytest.raises(WrongBatch, match="'axes' has trailing axes"):
        Batch.of(sequences, {"axes": torch.zeros(2, 2, dtype=torch.int64)})


def test_trailing_axes_that_differ_are_not_concatenated() -> None:
    """X4: two kept ids and three, where the schema leaves the number free."""
    schema = SCHEMA.with_columns(Column("wide", Table.TOKENS, Kind.INPUT, torch.float32, (None,)))
    two, three = (
        Batch.of(
            Sequences.of({"id": torch.tensor([size]), "length": torch.tensor([1])}, schema),
            {"wide": torch.zeros(1, size)},
        )
        for size in (2, 3)
    )
    assert Batch.cat([two, two.select([0])]).columns["wide"].shape == (2, 2)
    with pytest.raises(WrongBatch, match=r"'wide' differs .*\[2\].*\[3\]"):
        Batch.cat([two, three])


def test_a_table_without_a_column_has_no_row() -> None:
    """A scalar has no rows to count either."""
    assert rows_of({}) == 0
    assert rows_of({"scale": torch.tensor(1.0)}) == 0
    assert rows_of({"scale": torch.tensor(1.0), "token": torch.zeros(3)}) == 3
