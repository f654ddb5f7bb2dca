"""A teacher's columns from an engine that scores given ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from hexpo.adapters.rollout.vllm import Scores, ServedScorer
from hexpo.adapters.stores import memory
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.metrics import values

NAMES = ("teacher", "teacher_topk", "teacher_ids")


class Padded:
    """An engine of nine ids, and each of its two likeliest ones has half of the mass."""

    def __init__(self, likeliest: Sequence[int], *, own: float = -1.0) -> None:
        self._likeliest, self._own = torch.tensor(likeliest), own
        self.inside = self.most = 0

    async def score(self, prompt_ids: Sequence[int], *, top_k: int) -> Scores:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        count = len(prompt_ids)
        return Scores(
            logprobs=torch.full((count,), self._own),
            top_ids=self._likeliest[:top_k].expand(count, -1),
            top_logprobs=torch.full((count, top_k), 0.5).log(),
        )


def rows_of(store: RowStore, *, count: int) -> Sequences:
    """Rows of three tokens, of which the policy sampled the last two."""
    rows = Sequences.of({"id": torch.arange(count), "length": torch.full((count,), 3)})
    columns = {
        "token": torch.tensor([1, 2, 3]).repeat(count),
        "action": torch.tensor([False, True, True]).repeat(count),
        "position": torch.arange(3).repeat(count),
    }
    store.put(Batch.of(rows, columns))
    return rows


def test_a_kept_id_that_the_policy_lacks_makes_its_token_unusable() -> None:
    """C3, S7: a teacher's vocabulary may be padded; the id never reaches the policy's head."""
    store = memory.build()
    rows = rows_of(store, count=2)
    scorer = ServedScorer(Padded([4, 8]), store=store, top_k=2, vocabulary=8)
    told = values(asyncio.run(scorer.score(rows, NAMES)))
    found = store.get(rows.ids, NAMES)
    action_T = torch.tensor([False, True, True]).repeat(2)
    assert told == {"score/tokens": 6.0, "score/unusable": 4.0}
    assert found["teacher_topk"][action_T].isnan().all()
    assert int(found["teacher_ids"].max()) == 0
    assert found["teacher"].tolist() == [0.0, -1.0, -1.0] * 2


def test_a_token_of_which_the_engine_has_no_number_is_counted() -> None:
    """C3: in the narrow column alone."""
    store = memory.build()
    rows = rows_of(store, count=1)
    scorer = ServedScorer(Padded([4, 5], own=-torch.inf), store=store, top_k=2)
    assert values(asyncio.run(scorer.score(rows, ["teacher"])))["score/unusable"] == 2.0


def test_the_engine_is_given_so_many_rows_at_a_time() -> None:
    """A large batch is no flood of requests; all are answered, in their order."""
    store = memory.build()
    rows = rows_of(store, count=50)
    engine = Padded([4, 5])
    scorer = ServedScorer(engine, store=store, top_k=2, at_once=7)
    asyncio.run(scorer.score(rows, NAMES))
    assert engine.most == 7
    assert store.get(rows.ids, ["teacher_ids"])["teacher_ids"][1].tolist() == [4, 5]
