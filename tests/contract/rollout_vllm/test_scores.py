"""What vLLM says of ids that it is given."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from tests.contract.rollout_vllm.bench import MARKS, SUITE, OverThere, bench_of, needs_vllm

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm import ServedScorer
from hexpo.adapters.stores import memory
from hexpo.adapters.training.fsdp import Config as Training
from hexpo.adapters.training.fsdp import build_frozen
from hexpo.domain.batch import Batch, Sequences

pytestmark = MARKS


@needs_vllm
@pytest.mark.slow
def test_an_exported_folder_has_equal_logits_in_vllm_and_in_transformers(real: OverThere) -> None:
    """H7: over the whole vocabulary, at every place of a long text."""
    ids = torch.randint(3, SUITE.VOCABULARY, (200,), generator=torch.Generator().manual_seed(5))

    async def work(_: Any) -> Any:
        return await real.there(real.engine.score(ids.tolist(), top_k=SUITE.VOCABULARY))

    scores = SUITE.run(bench_of(real), work)
    expected_LV = real.model.logits(ids.tolist()).log_softmax(-1)[:-1]
    found_LV = torch.zeros_like(expected_LV).scatter(1, scores.top_ids[1:], scores.top_logprobs[1:])
    torch.testing.assert_close(found_LV, expected_LV, rtol=0, atol=1e-4)


@needs_vllm
@pytest.mark.slow
def test_a_served_teacher_says_what_the_trainer_s_own_engine_says(real: OverThere) -> None:
    """C1, S4: the same columns of the same rows, within single precision."""
    store = memory.build()
    lengths = torch.tensor([9, 40, 3, 120])
    rows = Sequences.of({"id": torch.arange(4), "length": lengths})
    generator = torch.Generator().manual_seed(2)
    count = int(lengths.sum())
    action_T = torch.rand(count, generator=generator) < 0.6
    action_T[lengths.cumsum(0) - lengths] = False  # nothing stands before a first token
    token_T = torch.randint(3, SUITE.VOCABULARY, (count,), generator=generator)
    position_T = torch.cat([torch.arange(one) for one in lengths.tolist()])
    store.put(Batch.of(rows, {"token": token_T, "action": action_T, "position": position_T}))
    policy = load_policy(str(real.model.folder), precision=Precision.FP32)
    own = build_frozen(
        Training(top_k=7), policy=policy, store=store, temperature=1.0, column="reference"
    )
    served = ServedScorer(Away(real), store=store, top_k=7)

    async def work(_: Any) -> None:
        for scorer, name in ((own, "reference"), (served, "teacher")):
            await scorer.score(rows, [name, f"{name}_topk", f"{name}_ids"])

    SUITE.run(bench_of(real), work)
    kinds = ("", "_topk", "_ids")
    found = store.get(
        rows.ids, [f"{one}{kind}" for one in ("teacher", "reference") for kind in kinds]
    )
    for kind in ("", "_topk"):
        torch.testing.assert_close(
            found[f"teacher{kind}"], found[f"reference{kind}"], rtol=0, atol=1e-4
        )
    assert torch.equal(found["teacher_ids"], found["reference_ids"])
    assert float(found["teacher"][action_T].max()) < 0


@attrs.frozen
class Away:
    """The engine, as whoever calls it from another loop sees it."""

    real: OverThere

    async def score(self, prompt_ids: Any, *, top_k: int) -> Any:
        return await self.real.there(self.real.engine.score(prompt_ids, top_k=top_k))


@needs_vllm
@pytest.mark.slow
def test_scores_are_those_of_a_full_forward(real: OverThere) -> None:
    """Teachers: the id's own log-prob and the likeliest ids, at temperature 1."""
    ids = [5, 9, 33, 2, 17, 40, 6]

    async def work(_: Any) -> Any:
        return await real.there(real.engine.score(ids, top_k=5))

    scores = SUITE.run(bench_of(real), work)
    expected_LV = real.model.logits(ids).log_softmax(-1)[:-1]
    own = expected_LV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    top = expected_LV.topk(5)
    torch.testing.assert_close(scores.logprobs[1:], own, rtol=0, atol=1e-4)
    torch.testing.assert_close(scores.top_logprobs[1:], top.values, rtol=0, atol=1e-4)
    assert torch.equal(scores.top_ids[1:], top.indices)
    assert scores.logprobs[0] == 0
