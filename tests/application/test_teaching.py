"""Rows find their teachers, and come back in their own order."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.application.teaching import Teachers
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.metrics import Metrics, total, values


class Marking:
    """A teacher whose every number is its own."""

    def __init__(self, store: MemoryRowStore, mark: float, *, width: int = 2) -> None:
        self._store, self._mark, self.width = store, mark, width
        self.seen: list[int] = []

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        self.seen += rows.ids.tolist()
        tokens = int(rows.lengths.sum())
        made = {
            "teacher": torch.full((tokens,), self._mark),
            "teacher_topk": torch.full((tokens, self.width), self._mark),
            "teacher_ids": torch.full((tokens, self.width), int(-self._mark)),
        }
        self._store.extend(rows.ids, {name: made[name] for name in columns})
        return {"score/tokens": total(float(tokens)), "score/unusable": total(self._mark)}


@given(places=st.lists(st.integers(-1, 1), max_size=6), wide=st.booleans())
def test_each_row_is_scored_once_by_its_own_teacher(places: list[int], wide: bool) -> None:
    """S4: order is preserved; a row without a teacher is told so, and counted."""
    store = MemoryRowStore()
    lengths = torch.arange(len(places)) % 3 + 1
    rows = Sequences.of(
        {
            "id": 10 + torch.arange(len(places)),
            "length": lengths,
            "taught_by": torch.tensor(places, dtype=torch.int64),
        }
    )
    store.put(Batch.of(rows, {"token": torch.zeros(int(lengths.sum()), dtype=torch.int64)}))
    one, two = Marking(store, -1.0), Marking(store, -2.0)
    columns = {"teacher", "teacher_topk", "teacher_ids"} if wide else {"teacher"}
    metrics = values(asyncio.run(Teachers({"a": one, "b": two}, store=store).score(rows, columns)))
    assert one.seen == [10 + n for n, place in enumerate(places) if place == 0]
    assert two.seen == [10 + n for n, place in enumerate(places) if place == 1]
    counts = [metrics[f"teacher/{name}/samples"] for name in ("a", "b", "none")]
    assert counts == [places.count(place) for place in (0, 1, -1)]
    assert metrics.get("teacher/b/unusable") == (-2.0 if 1 in places else None)
    assert "score/unusable" not in metrics
    stored = store.get(rows.ids, columns)
    marks = torch.repeat_interleave(torch.tensor([0.0, -1.0, -2.0])[rows["taught_by"] + 1], lengths)
    marks[marks == 0] = torch.nan
    torch.testing.assert_close(stored["teacher"], marks, equal_nan=True)
    if wide and places:
        torch.testing.assert_close(stored["teacher_topk"][:, 1], marks, equal_nan=True)
        assert stored["teacher_ids"].shape == (int(lengths.sum()), 2)


def test_teachers_that_keep_different_numbers_of_ids_are_refused() -> None:
    """M3: one column holds what all of them say."""
    store = MemoryRowStore()
    with pytest.raises(ConfigurationError, match="equally many ids"):
        Teachers({"a": Marking(store, -1.0), "b": Marking(store, -1.0, width=3)}, store=store)
