"""The engine as a critic, its sum of squares, and a model that is only asked."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest
import torch
from tests.adapters.training.fsdp import made
from tests.tiny import llama
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, FsdpEngine, build_frozen
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.losses.value import value
from hexpo.domain.objective import Loss, Objective, Term

VALUE = Objective(terms=(Term(name="value", loss=Loss(function=value, options={"clip": None})),))
LENGTHS = torch.tensor([9, 4, 7, 6])
TEMPERATURE = 0.7


def policy(precision: Precision = Precision.FP32) -> Policy:
    module = llama(vocab_size=61, initializer_range=0.2)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(precision.dtype)
    return Policy(module, precision=precision)


engine_of = partial(made.engine_of, temperature=TEMPERATURE)


def rows_in(
    store: MemoryRowStore, *, without: str = "", target: float = 1.0
) -> tuple[Sequences, Tensor]:
    """Four rows of two prompts, and their ids in a table padded with 0."""
    tokens = [torch.randint(3, 61, (int(n),), generator=torch.Generator().manual_seed(int(n)))
              for n in LENGTHS]  # fmt: skip
    position = torch.cat([torch.arange(int(n)) for n in LENGTHS])
    action = position >= 2
    sequences = Sequences.of(
        {
            "id": torch.arange(4),
            "group": torch.tensor([0, 0, 1, 1]),
            "length": LENGTHS,
            "prompt_length": torch.full((4,), 2),
            "trained": LENGTHS - 2,
        }
    )
    columns = {
        "token": torch.cat(tokens),
        "position": position,
        "action": action,
        "trained": action,
        "value": torch.zeros(len(position)),
        "return": torch.where(action, target + position / 10, 0.0),
    }
    columns.pop(without, None)
    store.put(Batch.of(sequences, columns))
    return VALUE.weigh(sequences), torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def predicted(table_SL: Tensor) -> Tensor:
    """(T, ...) from (S, L, ...): what each place says of the next token, rows end to end."""
    pieces = []
    for row, length in zip(table_SL, LENGTHS.tolist(), strict=True):
        shifted = torch.cat([torch.zeros_like(row[:1]), row[: length - 1]])
        shifted[:2] = 0
        pieces.append(shifted)
    return torch.cat(pieces)


def test_the_sum_of_squares_is_that_of_the_sampled_distribution() -> None:
    """algorithms.md, optimal token baseline: at the rollout's temperature, chunk by chunk."""
    model = policy()
    engine, store = engine_of(model, head_tokens=3)
    rows, table_SL = rows_in(store)
    run(engine.score(rows, ("squares", "old")))
    with torch.no_grad():
        logits = model.module(input_ids=table_SL).logits
    dense = (logits / TEMPERATURE).softmax(-1).square().sum(-1)
    stored = store.get(rows.ids, ("squares", "action"))
    assert_close(stored["squares"], predicted(dense), rtol=1e-5, atol=1e-6)
    assert (stored["squares"][stored["action"]] > 1 / 61).all()


def test_a_critic_reads_the_state_before_each_token() -> None:
    """X5: the value at i is the head's answer at i - 1; a fresh head says 0 everywhere."""
    model = policy()
    engine, store = engine_of(model, value_head=True)
    rows, table_SL = rows_in(store, without="value")
    head = model.module.get_submodule("value_head")
    assert isinstance(head, torch.nn.Linear)
    assert not head.weight.any()
    torch.nn.init.normal_(head.weight)
    run(engine.score(rows, ("value",)))
    with torch.no_grad():
        hidden = model.module.base_model(input_ids=table_SL).last_hidden_state
        values = (hidden @ head.weight.t()).squeeze(-1)
    assert_close(store.get(rows.ids, ("value",))["value"], predicted(values), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", list(Precision))
def test_no_split_changes_what_a_critic_learns(precision: Precision) -> None:
    """A1: one micro-batch or one a row, the same step to the last digit that fp32 sums keep."""
    found = []
    for micro_tokens in (1000, 1):
        model = policy(precision)
        engine, store = engine_of(model, value_head=True, micro_tokens=micro_tokens)
        rows, _ = rows_in(store)

        async def step(engine: FsdpEngine = engine, rows: Sequences = rows) -> float:
            await engine.accumulate(rows, VALUE)
            result = await engine.step()
            assert result.applied
            return float(result.metrics["train/gradient_norm"].total)

        found.append(run(step()))
    assert found[0] == pytest.approx(found[1], rel=1e-5 if precision is Precision.FP32 else 2e-2)
    assert found[0] > 0


def test_a_critic_whose_target_is_no_number_is_skipped_and_named() -> None:
    """J1, O18: the same rule as for a policy."""
    model = policy()
    engine, store = engine_of(model, value_head=True)
    rows, _ = rows_in(store, target=float("nan"))
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}

    async def step() -> Any:
        await engine.accumulate(rows, VALUE)
        return await engine.step()

    result = run(step())
    assert not result.applied
    assert "samples 0, 1, 2, 3" in result.cause
    assert all(p.equal(before[name]) for name, p in model.module.named_parameters())


def test_a_critic_refuses_what_only_a_policy_makes() -> None:
    """M2."""
    engine, store = engine_of(policy(), value_head=True)
    rows, _ = rows_in(store)
    with pytest.raises(Unsupported, match="it makes value"):
        run(engine.score(rows, ("old",)))
    with pytest.raises(Unsupported, match="remove `lora`"):
        engine_of(policy(), value_head=True, lora=Lora())


def test_a_frozen_model_gives_the_log_probs_that_an_engine_gives() -> None:
    """S5: one head, one label shift; and it holds no gradient."""
    engine, store = engine_of(policy(), micro_tokens=5)
    asked = policy()
    scorer = build_frozen(
        Config(micro_tokens=8),
        policy=asked,
        store=store,
        temperature=TEMPERATURE,
        column="teacher",
    )
    rows, _ = rows_in(store)
    run(engine.score(rows, ("old",)))
    run(scorer.score(rows, ("teacher",)))
    stored = store.get(rows.ids, ("old", "teacher"))
    assert_close(stored["teacher"], stored["old"], rtol=1e-5, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in asked.module.parameters())
    with pytest.raises(Unsupported, match="makes teacher, teacher_topk"):
        run(scorer.score(rows, ("old",)))
