"""Values on their way: what is copied and what is not."""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import MemoryMappedTensor, TensorDict

from hexpo.adapters.cluster.wire.codec import SMALL, decode, encode


def test_large_memory_lies_beside_the_pickle_uncopied() -> None:
    """O: what travels is the tensor's own memory, and the pickle stays small."""
    table = TensorDict({"a": torch.ones(50_000), "b": torch.ones(50_000).bfloat16()}, [50_000])
    head, *buffers = encode(table)
    assert len(head) < 2_000
    assert sorted(memoryview(buffer).nbytes for buffer in buffers) == [100_000, 200_000]
    table["a"].fill_(3)
    back = decode([head, *(bytearray(buffer) for buffer in buffers)])
    assert torch.equal(back["a"], torch.full((50_000,), 3.0))
    assert back["b"].dtype == torch.bfloat16


def test_a_mapped_tensor_travels_by_name(tmp_path: Path) -> None:
    """A slice of rows in shared memory is some bytes, whatever its size."""
    rows = torch.arange(1_000_000)
    mapped = MemoryMappedTensor.from_tensor(rows, filename=str(tmp_path / "rows"))
    parts = encode({"rows": mapped[10:900_000]})
    assert sum(memoryview(part).nbytes for part in parts) < 1_000
    assert torch.equal(decode(parts)["rows"], rows[10:900_000])


def test_small_memory_lies_inside_the_pickle() -> None:
    """One write for a small message."""
    assert len(encode(torch.zeros(SMALL // 4 - 1))) == 1
    assert len(encode(torch.zeros(SMALL // 4))) == 2


def test_only_the_slice_travels_and_no_graph() -> None:
    """A view does not drag its whole storage along, nor a parameter its graph."""
    parts = encode(torch.zeros(1_000_000)[5:5_005])
    assert sum(memoryview(part).nbytes for part in parts) < 25_000
    weight = torch.ones(2, requires_grad=True)
    assert not decode(encode(weight * 2)).requires_grad


def test_memory_that_may_not_be_written_is_copied() -> None:
    """An object store lends its memory for reading; a tensor may be written to."""
    head, buffer = encode(torch.arange(2_000))
    lent = bytes(buffer)
    back = decode([head, lent])
    back.zero_()
    assert torch.equal(decode([head, lent]), torch.arange(2_000))
