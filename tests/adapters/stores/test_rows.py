"""A row store in shared memory, seen by several processes."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hexpo.adapters.stores import mapped
from hexpo.adapters.stores.mapped.spares import Spares
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch


def batch(ids: list[int], lengths: list[int], *, first: int = 0) -> Batch:
    table = {"id": torch.tensor(ids), "length": torch.tensor(lengths)}
    token = torch.arange(first, first + sum(lengths))
    return Batch.of(Sequences.of(table), {"token": token})


def ids(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def test_a_pickled_store_is_the_same_store(tmp_path: Path) -> None:
    """X4: what one writes the other reads; what one drops is gone in the other, and may come
    again."""
    store = mapped.build(mapped.Config(folder=str(tmp_path)))
    other = pickle.loads(pickle.dumps(store))
    store.put(batch([1, 2], [3, 2]))
    assert other.get(ids(2, 1), ["token"])["token"].tolist() == [3, 4, 0, 1, 2]
    other.extend(ids(2), {"value": torch.tensor([7.0, 8.0])})
    assert store.get(ids(2), ["value"])["value"].tolist() == [7.0, 8.0]
    with pytest.raises(WrongBatch, match="value"):
        store.extend(ids(2), {"value": torch.zeros(2)})
    store.drop(ids(2))
    with pytest.raises(WrongBatch, match="2"):
        other.get(ids(2), ["token"])
    store.put(batch([2], [1], first=40))
    assert other.get(ids(2, 1), ["token"])["token"].tolist() == [40, 0, 1, 2]
    with pytest.raises(WrongBatch, match="value"):
        other.get(ids(2), ["value"])
    store.close()


def test_files_go_with_their_last_row_and_the_folder_with_the_store(tmp_path: Path) -> None:
    """I2: nothing is left, notes of what was dropped included."""
    store = mapped.build(mapped.Config(folder=str(tmp_path)))
    for step in range(5):
        store.put(batch([step, 100 + step], [4, 4]))
        store.extend(ids(step), {"old": torch.zeros(4)})
        store.drop(ids(step))
        assert len(list(store.folder.glob("*.rows"))) == 1
        store.drop(ids(100 + step))
        assert sorted(path.name for path in store.folder.iterdir()) == ["owned"]
    store.close()
    store.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(WrongBatch, match="closed"):
        store.get(ids(1), ["token"])


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """O3: and what is in use stays."""
    script = (
        "import sys, time; from hexpo.adapters.stores import mapped;"
        "store = mapped.build(mapped.Config(folder=sys.argv[1])); print(store.folder, flush=True);"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        mapped.build(mapped.Config(folder=str(tmp_path))).close()
        assert folder.is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    mapped.build(mapped.Config(folder=str(tmp_path))).close()
    assert not folder.exists()


def test_a_store_pickles_to_its_name_whatever_it_holds(tmp_path: Path) -> None:
    """X4: under 1 kB beside the schema's own words."""
    store = mapped.build(mapped.Config(folder=str(tmp_path)))
    before = len(pickle.dumps(store))
    store.put(batch(list(range(100)), [1000] * 100))
    assert len(pickle.dumps(store)) == before
    store.close()


def test_memory_of_dropped_rows_is_written_over(tmp_path: Path) -> None:
    """X4, I2: the same file holds the next rows, another process reads those, and no more is kept
    than was allowed; a file that is still warm stays."""
    store = mapped.build(mapped.Config(folder=str(tmp_path), spare_bytes=2_500_000))
    store._spares = Spares(store.folder, most_bytes=2_500_000, cool_seconds=0)
    other = pickle.loads(pickle.dumps(store))
    store.put(batch([1], [100_000]))
    assert other.get(ids(1), ["token"])["token"][-1] == 99_999
    (first,) = store.folder.glob("*.rows")
    inode = first.stat().st_ino
    store.drop(ids(1))
    store.put(batch([2], [90_000], first=7))
    (second,) = store.folder.glob("*.rows")
    assert second.stat().st_ino == inode
    for each in (store, other):
        assert torch.equal(each.get(ids(2), ["token"])["token"], torch.arange(7, 90_007))
        with pytest.raises(WrongBatch, match="1"):
            each.get(ids(1), ["token"])
    for row in range(10, 15):
        store.put(batch([row], [100_000]))
    store.drop(ids(*range(10, 15)))
    assert sum(file.stat().st_size for file in store.folder.glob("*.spare")) <= 2_500_000
    assert len(list(store.folder.glob("*.spare"))) == 3
    store._spares = Spares(store.folder, most_bytes=2_500_000)
    store.put(batch([20], [100_000]))
    assert len(list(store.folder.glob("*.spare"))) == 3
    store.close()
    assert list(tmp_path.iterdir()) == []
