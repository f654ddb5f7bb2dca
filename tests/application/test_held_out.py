"""KTO's reference point: one number an optimizer step, of its rows alone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.application.held_out import ReferencePoint, Scoring
from hexpo.domain.batch import Sequences
from hexpo.domain.batch.examples import Example, lay_out
from hexpo.domain.metrics import Metrics


@attrs.frozen(eq=False)
class _ByToken:
    """Scores each token by its id: the policy gives it a quarter of the id, the reference 1."""

    store: MemoryRowStore

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        token_T = self.store.get(rows.ids, ["token"])["token"]
        made = {"old": token_T / 4, "reference": torch.ones(len(token_T))}
        self.store.extend(rows.ids, {name: made[name] for name in columns})
        return {}


def example(prompt: list[int], answer: list[int]) -> Example:
    action = torch.tensor([False] * len(prompt) + [True] * len(answer))
    return Example(tokens=torch.tensor(prompt + answer), action=action)


def points(answers: list[list[int]], updates: int) -> tuple[list[float], Metrics]:
    """Each row's z, and the metrics. Prompts count for nothing, so their ids are large."""
    units = [[example([100 + place], answer)] for place, answer in enumerate(answers)]
    store = MemoryRowStore()
    scorer = _ByToken(store)
    point = ReferencePoint(
        scoring=Scoring(store=store, scorers={"old": scorer, "reference": scorer})
    )
    batch, metrics = asyncio.run(point.added(lay_out(units), units, updates=updates))
    return batch.sequences["reference_point"].tolist(), metrics


def test_each_optimizer_step_has_the_reference_point_of_its_own_rows() -> None:
    """X6: four rows gain 1, 3, -1 and -5 nats: max(0, mean) of all, of each half, of each row."""
    answers = [[8], [8, 12], [4, 0], [0, 0, 0, 0, 0]]
    whole, metrics = points(answers, 1)
    assert whole == [0.0] * 4  # max(0, (1 + 3 - 1 - 5) / 4)
    assert metrics["kto/reference_point"].value == 0.0
    halves, metrics = points(answers, 2)
    assert halves == [2.0, 2.0, 0.0, 0.0]
    assert metrics["kto/reference_point"].value == 1.0
    alone, _ = points(answers, 4)
    assert alone == [0.0] * 4  # no other prompt to compare with


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), max_size=9), st.data())
def test_a_step_of_a_cut_batch_has_the_point_that_it_has_alone(
    answers: list[list[int]], data: st.DataObject
) -> None:
    """X6, A1: a mini-batch is a batch of the paper, wherever its rows lie."""
    updates = data.draw(st.integers(1, 4))
    found, _ = points(answers, updates)
    parts = torch.tensor_split(torch.arange(len(answers)), max(1, min(updates, len(answers))))
    apart = [z for part in parts for z in points([answers[place] for place in part], 1)[0]]
    assert found == pytest.approx(apart)
