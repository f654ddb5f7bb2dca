"""A served model fills a teacher's columns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch

from hexpo.adapters.rollout.vllm import Scores, ServedScorer
from hexpo.adapters.stores import memory
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import EngineFailed, Unsupported


class Engine:
    """Says of id i, at place p, minus (i + p / 100); keeps the ids 7, 8, ..."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []

    async def score(self, prompt_ids: Sequence[int], *, top_k: int) -> Scores:
        self.asked.append((list(prompt_ids), top_k))
        if 99 in prompt_ids:
            raise EngineFailed("the engine died")
        await asyncio.sleep(0.001 * len(prompt_ids))  # the longest answers last
        count = len(prompt_ids)
        ids_LK = torch.arange(7, 7 + top_k).repeat(count, 1)
        return Scores(
            logprobs=-(torch.tensor(prompt_ids) + torch.arange(count) / 100),
            top_ids=ids_LK,
            top_logprobs=-ids_LK.float(),
        )


def stored(tokens: Sequence[Sequence[int]], actions: Sequence[Sequence[int]]) -> RowStore:
    store = memory.build()
    store.put(
        Batch.of(
            rows(tokens),
            {
                "token": torch.tensor([one for row in tokens for one in row], dtype=torch.int64),
                "action": torch.tensor([one for row in actions for one in row], dtype=torch.bool),
            },
        )
    )
    return store


def rows(tokens: Sequence[Sequence[int]]) -> Sequences:
    lengths = torch.tensor([len(row) for row in tokens], dtype=torch.int64)
    return Sequences.of({"id": torch.arange(len(tokens)) + 40, "length": lengths})


TOKENS = [[3, 4, 5, 6], [1, 2], [9, 8, 7]]
ACTIONS = [[0, 0, 1, 1], [0, 1], [0, 1, 0]]


def test_each_row_s_columns_speak_of_the_sampled_tokens_in_the_rows_own_order() -> None:
    """S4, X5: zeros elsewhere; the slowest row does not change the order."""
    engine, store = Engine(), stored(TOKENS, ACTIONS)
    scorer = ServedScorer(engine, store=store, top_k=2)
    columns = ("teacher", "teacher_topk", "teacher_ids")
    metrics = asyncio.run(scorer.score(rows(TOKENS), columns))
    found = store.get(rows(TOKENS).ids, columns)
    assert found["teacher"].tolist() == pytest.approx(
        [0, 0, -5.02, -6.03, 0, -2.01, 0, -8.01, 0], abs=1e-6
    )
    action_T = torch.tensor([bool(one) for row in ACTIONS for one in row])
    assert found["teacher_ids"][action_T].tolist() == [[7, 8]] * 4
    assert found["teacher_topk"][action_T].tolist() == [[-7.0, -8.0]] * 4
    assert not found["teacher_ids"][~action_T].any()
    assert scorer.width == 2
    assert metrics["score/tokens"].value == 9


def test_no_distribution_is_asked_for_where_no_column_keeps_it() -> None:
    """A top-k costs the engine a sort and the wire its size."""
    engine, store = Engine(), stored(TOKENS, ACTIONS)
    scorer = ServedScorer(engine, store=store, column="reference", top_k=5)
    asyncio.run(scorer.score(rows(TOKENS), ["reference"]))
    assert {top_k for _, top_k in engine.asked} == {0}
    assert [ids for ids, _ in engine.asked] == TOKENS


def test_no_row_writes_nothing() -> None:
    """Layout follows from offsets: no row is ordinary."""
    engine, store = Engine(), stored([], [])
    asyncio.run(ServedScorer(engine, store=store).score(rows([]), ["teacher"]))
    assert engine.asked == []


def test_a_failing_engine_writes_no_column_of_any_row() -> None:
    """Whole or not at all; the engine's own error is the one shown."""
    tokens = [*TOKENS, [99, 1]]
    store = stored(tokens, [*ACTIONS, [0, 1]])
    scorer = ServedScorer(Engine(), store=store)
    with pytest.raises(EngineFailed, match="the engine died"):
        asyncio.run(scorer.score(rows(tokens), ["teacher"]))
    store.extend(rows(tokens).ids, {"teacher": torch.zeros(11)})  # it was not there


@pytest.mark.parametrize(
    ("temperature", "column", "message"),
    [(0.7, "teacher", "temperature 1, not 0.7"), (1.0, "value", "not .'value'.")],
)
def test_what_it_cannot_say_is_refused(temperature: float, column: str, message: str) -> None:
    """C2: another temperature is another distribution."""
    store = stored(TOKENS, ACTIONS)
    with pytest.raises(Unsupported, match=message):
        asyncio.run(
            ServedScorer(Engine(), store=store, temperature=temperature).score(
                rows(TOKENS), [column]
            )
        )
