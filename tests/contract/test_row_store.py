"""Every row store keeps the port's promises."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.stores import mapped, memory, served
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import EngineFailed, IllegalTransition
from hexpo.entrypoints.testing.row_store import CONTRACT, Check, Open
from hexpo.entrypoints.testing.strategies import batches

STORES = {"memory": memory.build, "mapped": mapped.build}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("open_store", STORES.values(), ids=STORES.keys())
def test_a_row_store_keeps_its_contract(check: Check, open_store: Open) -> None:
    """X4."""
    check(open_store)


@pytest.fixture
def open_from_afar() -> Iterator[Open]:
    """Stores as another process has them: by their names, over the network."""
    made: list[tuple[served.ServedRowStore, served.RemoteRowStore]] = []

    def open_store() -> RowStore:
        store = served.build(rows=memory.build())
        store.listen("127.0.0.1")
        client: served.RemoteRowStore = pickle.loads(pickle.dumps(store))
        made.append((store, client))
        return client

    yield open_store
    for store, client in made:
        client.close()
        asyncio.run(store.close())
        asyncio.run(store.close())


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_row_store_keeps_its_contract_over_the_network(
    check: Check, open_from_afar: Open
) -> None:
    """X4: what it refuses crosses, too."""
    check(open_from_afar)


def test_a_served_store_has_the_same_rows_here_and_there_for_whoever_has_the_key() -> None:
    """O3: it ends with its threads and connections, and says so to those who still ask."""
    before = threading.active_count()
    store = served.build(rows=memory.build())
    with pytest.raises(IllegalTransition, match="listen"):
        pickle.dumps(store)
    store.listen("127.0.0.1")
    client: served.RemoteRowStore = pickle.loads(pickle.dumps(store))
    _, (host, port, _) = client.__reduce__()
    ids, length = torch.tensor([4, 9]), torch.tensor([3, 1])
    store.put(Batch.of(Sequences.of({"id": ids, "length": length}), {"token": torch.arange(4)}))
    client.extend(ids, {"old": torch.tensor([0.5, 1.0, 1.5, 2.0])})
    found = store.get(ids.flip(0), ["token", "old"])
    assert found["token"].tolist() == [3, 0, 1, 2]
    assert found["old"].tolist() == [2.0, 0.5, 1.0, 1.5]
    stranger = served.RemoteRowStore(host, port, b"guessed")
    with pytest.raises(EngineFailed, match="does not answer"):
        stranger.get(ids, ["token"])
    assert client.get(ids, ["token"])["token"].tolist() == [0, 1, 2, 3]
    asyncio.run(store.close())
    with pytest.raises(EngineFailed, match="is the driver alive"):
        client.get(ids, ["token"])
    client.close()
    assert threading.active_count() == before


@given(batch=batches(), data=st.data())
def test_stored_rows_are_what_selecting_them_gives(batch: Batch, data: st.DataObject) -> None:
    """X4: the store and `select` agree for every order, ragged rows included."""
    store = memory.build()
    store.put(batch)
    order = data.draw(st.permutations(range(len(batch))))
    chosen = batch.select(order)
    found = store.get(chosen.sequences.ids, list(batch.columns))
    for name, column in chosen.columns.items():
        assert torch.equal(found[name], column), name


def test_the_memory_of_a_block_is_freed_with_its_last_row() -> None:
    """I2."""
    store = memory.build()
    ids = torch.tensor([1, 2])
    block = torch.arange(4)
    store.put(Batch.of(Sequences.of({"id": ids, "length": torch.tensor([2, 2])}), {"token": block}))
    alive = weakref.ref(block.untyped_storage())
    del block
    gc.collect()
    store.drop(ids[:1])
    assert alive() is not None
    store.drop(ids[1:])
    gc.collect()
    assert alive() is None
    assert store.get(torch.zeros(0, dtype=torch.int64), ["token"]).shape[0] == 0


def test_threads_may_write_different_columns_of_the_same_rows() -> None:
    """F6: scorers run in threads of their own."""
    store = memory.build()
    rows, length = 200, 3
    ids = torch.arange(rows)
    table = Sequences.of({"id": ids, "length": torch.full((rows,), length)})
    store.put(Batch.of(table, {"token": torch.arange(rows * length)}))

    def write(name: str) -> None:
        for part in ids.split(10):
            store.extend(part, {name: torch.full((len(part) * length,), 1.0)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, ("old", "reference", "value", "entropy")))
    found = store.get(ids, ["old", "reference", "value", "entropy"])
    assert all(float(found[name].sum()) == rows * length for name in ("old", "entropy"))
