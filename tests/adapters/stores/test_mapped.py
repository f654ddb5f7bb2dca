"""A batch in memory-mapped files."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given

from hexpo.adapters.stores.mapped import open_mapped, write_mapped
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.entrypoints.testing.strategies import batches


@given(batch=batches())
def test_a_mapped_batch_is_the_batch_that_was_written(batch: Batch) -> None:
    """X4: zero rows and zero tokens included, which no file can be mapped for."""
    with tempfile.TemporaryDirectory() as folder:
        write_mapped(batch, Path(folder))
        found = open_mapped(Path(folder))
        assert found.columns.keys() == batch.columns.keys()
        for name, column in batch.columns.items():
            assert torch.equal(found.columns[name], column), name
        for name, column in batch.sequences.columns.items():
            assert torch.equal(found.sequences[name], column), name


def test_a_mapped_table_and_its_slices_pickle_to_their_names(tmp_path: Path) -> None:
    """X4: under 1 kB, whatever the size."""
    rows, length = 100, 1000
    sequences = Sequences.of({"id": torch.arange(rows), "length": torch.full((rows,), length)})
    write_mapped(Batch.of(sequences, {"token": torch.arange(rows * length)}), tmp_path)
    found = open_mapped(tmp_path)
    part = found.select(slice(10, 30)).tokens
    assert len(pickle.dumps(found.tokens)) < 1000
    assert len(pickle.dumps(part)) < 1000
    assert torch.equal(pickle.loads(pickle.dumps(part))["token"], torch.arange(10_000, 30_000))


def test_an_unfinished_or_taken_folder_is_refused(tmp_path: Path) -> None:
    """H3: the listing is written last."""
    with pytest.raises(WrongBatch, match=r"batch\.json is missing"):
        open_mapped(tmp_path)
    empty = Sequences.of({"id": torch.zeros(0).long(), "length": torch.zeros(0).long()})
    write_mapped(Batch.of(empty, {}), tmp_path)
    with pytest.raises(WrongBatch, match="holds a batch already"):
        write_mapped(Batch.of(empty, {}), tmp_path)
