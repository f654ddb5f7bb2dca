"""A batch as bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.batch import (
    SCHEMA,
    Batch,
    Column,
    Kind,
    Sequences,
    Table,
    from_bytes,
    to_bytes,
)
from hexpo.domain.errors import WrongBatch
from hexpo.entrypoints.testing.strategies import batches


def same(a: Batch, b: Batch) -> bool:
    pairs = ((a.columns, b.columns), (a.sequences.columns, b.sequences.columns))
    return all(
        list(left) == list(right)
        and all(
            torch.equal(left[name].nan_to_num(), right[name].nan_to_num())
            and left[name].dtype is right[name].dtype
            for name in left
        )
        for left, right in pairs
    )


@given(batch=batches())
def test_bytes_bring_back_the_same_batch(batch: Batch) -> None:
    """X4: ragged, equal lengths, one row, no row, a row without tokens."""
    assert same(from_bytes(to_bytes(batch)), batch)


@given(batch=batches(min_rows=1, min_length=1), data=st.data())
def test_damaged_bytes_are_refused(batch: Batch, data: st.DataObject) -> None:
    """X4: a changed bit or a lost tail never gives a batch."""
    good = to_bytes(batch)
    place = data.draw(st.integers(0, len(good) - 1))
    flipped = bytearray(good)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (bytes(flipped), good[:place]):
        with pytest.raises(WrongBatch):
            from_bytes(bad)


def test_every_dtype_and_trailing_axes_travel() -> None:
    """X5: routed experts, a teacher's top-k."""
    dtypes = (torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.float64)
    extra = [
        Column(f"c{place}", Table.TOKENS, Kind.INPUT, dtype, (2, None))
        for place, dtype in enumerate(dtypes)
    ]
    schema = SCHEMA.with_columns(*extra)
    sequences = Sequences.of({"id": torch.tensor([5]), "length": torch.tensor([3])}, schema)
    tokens = {
        each.name: torch.arange(12).reshape(3, 2, 2).to(each.dtype).transpose(1, 2)
        for each in extra
    }
    batch = Batch.of(sequences, tokens)
    assert same(from_bytes(to_bytes(batch), schema=schema), batch)
    with pytest.raises(WrongBatch, match="'c0' is not in the schema"):
        from_bytes(to_bytes(batch))


def test_the_tensors_are_the_readers_own() -> None:
    """X4: nothing is shared with the bytes or between two readers."""
    sequences = Sequences.of({"id": torch.tensor([5]), "length": torch.tensor([3])})
    data = to_bytes(Batch.of(sequences, {"token": torch.arange(3)}))
    from_bytes(data).columns["token"].fill_(9)
    assert from_bytes(data).columns["token"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "message"), [(b"", "no batch"), (b"x" * 64, "begins with"), (b"{}", "no batch")]
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    """X4."""
    with pytest.raises(WrongBatch, match=message):
        from_bytes(data)


def test_every_column_begins_at_a_multiple_of_64_bytes() -> None:
    """X4: a reader may take the numbers where they lie."""
    tokens = torch.arange(7, dtype=torch.int64) + 1_234_567_890_123
    sequences = Sequences.of({"id": torch.tensor([9_876_543_210]), "length": torch.tensor([7])})
    data = to_bytes(Batch.of(sequences, {"token": tokens}))
    for column in (tokens, sequences["id"]):
        assert data.index(column.numpy().tobytes()) % 64 == 0
