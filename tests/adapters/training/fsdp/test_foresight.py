"""The engine with multi-token heads: what they learn, what they leave alone, what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, FsdpEngine, build
from hexpo.adapters.training.fsdp.foresight import ForesightRank
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import CheckpointError, Unsupported
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.losses.supervised import mtp
from hexpo.domain.metrics import Metrics, values
from hexpo.domain.objective import Loss, Objective, Term

POLICY = Term(name="ppo", loss=Loss(function=ppo))
MTP = Term(name="mtp", loss=Loss(function=mtp), coefficient=0.3)
BOTH = Objective(terms=(POLICY, MTP))
LENGTHS, PROMPTS = [9, 4, 9, 6, 3, 12], [4, 1, 4, 4, 1, 2]


class _NoTokenizer:
    def save(self, folder: Path) -> None:
        (folder / "tokenizer").write_text("")


def policy(precision: Precision = Precision.FP32) -> Policy:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    module = LlamaForCausalLM(LlamaConfig(**shape, **heads))
    for parameter in module.parameters():
        parameter.data = parameter.data.to(precision.dtype)
    return Policy(module, precision=precision)


def engine_of(model: Policy, **settings: Any) -> tuple[FsdpEngine, Sequences]:
    """With six ragged rows, two of them with a common prompt; the second row has no tokens before
    its answer but one."""
    store = MemoryRowStore()
    engine = build(
        Config(**{"learning_rate": 1e-2, "mtp_depths": 2, **settings}),
        policy=model,
        store=store,
        tokenizer=_NoTokenizer(),  # type: ignore[arg-type]
        temperature=0.7,
        total_steps=100,
        seed=1,
    )
    draw = torch.Generator().manual_seed(3)
    lengths, prompts = torch.tensor(LENGTHS), torch.tensor(PROMPTS)
    tokens = torch.randint(3, 61, (sum(LENGTHS),), generator=draw)
    tokens[13:17] = tokens[:4]
    position = torch.cat([torch.arange(length) for length in LENGTHS])
    action = position >= torch.repeat_interleave(prompts, lengths)
    sequences = Sequences.of(
        {
            "id": torch.arange(6),
            "group": torch.tensor([0, 1, 0, 2, 3, 4]),
            "length": lengths,
            "prompt_length": prompts,
            "trained": lengths - prompts,
            "advantage": torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 0.0]),
        }
    )
    columns = {"token": tokens, "position": position, "action": action, "trained": action}
    store.put(Batch.of(sequences, columns))
    return engine, sequences


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def _train(engine: FsdpEngine, rows: Sequences, objective: Objective) -> Metrics:
    found = await engine.accumulate(objective.weigh(rows), objective)
    return {**found, **(await engine.step()).metrics}


def train(
    engine: FsdpEngine, rows: Sequences, objective: Objective = BOTH, *, steps: int = 1
) -> list[dict[str, float]]:
    return [values(run(_train(engine, rows, objective))) for _ in range(steps)]


def heads_of(engine: FsdpEngine) -> dict[str, Tensor]:
    weights = engine._rank.masters.weights()
    return {name: weight for name, weight in weights.items() if name.startswith("mtp.")}


def gradients_of(engine: FsdpEngine, rows: Sequences) -> dict[str, Tensor]:
    run(engine.accumulate(BOTH.weigh(rows), BOTH))
    masters = engine._rank.masters
    return dict(zip(masters.names, [g.clone() for g in masters.gradients], strict=True))


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("micro_tokens", [12, 1000])
def test_detached_heads_leave_the_policy_bit_for_bit_as_it_would_be(
    precision: Precision, micro_tokens: int
) -> None:
    """M2: over steps that are clipped, in every metric and weight of the policy; the heads do
    learn."""
    settings = {"clip_norm": 0.05, "weight_decay": 0.1, "micro_tokens": micro_tokens}
    alone, beside = policy(precision), policy(precision)
    one, rows = engine_of(alone, mtp_depths=0, **settings)
    other, _ = engine_of(beside, **settings)
    begun = {name: weight.clone() for name, weight in heads_of(other).items()}
    without = train(one, rows, Objective(terms=(POLICY,)), steps=3)
    having = train(other, rows, steps=3)
    assert alone.digest() == beside.digest()
    for before, after in zip(without, having, strict=True):
        assert before == {name: after[name] for name in before}
    assert all(not torch.equal(begun[name], weight) for name, weight in heads_of(other).items())


def test_attached_heads_pull_at_the_policy() -> None:
    """Through its hidden states, its embedding and its output layer."""
    detached, attached = policy(), policy()
    one, rows = engine_of(detached)
    other, _ = engine_of(attached, mtp_detached=False)
    of_one, of_other = gradients_of(one, rows), gradients_of(other, rows)
    for name in of_one:
        same = torch.equal(of_one[name], of_other[name])
        assert same == name.startswith("mtp."), name


@pytest.mark.parametrize("attached", [False, True])
def test_no_split_into_micro_batches_changes_the_heads_gradient(attached: bool) -> None:
    """A1."""
    wanted: dict[str, Tensor] = {}
    for micro_tokens in (1000, 20, 1):
        settings = {"mtp_detached": not attached, "micro_tokens": micro_tokens}
        found = gradients_of(*engine_of(policy(), **settings))
        wanted = wanted or found
        for name, gradient in found.items():
            assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-6)


def test_heads_that_run_again_in_backward_get_the_same_gradient() -> None:
    """Activation checkpointing is a way to save memory, and nothing else."""
    kept = gradients_of(*engine_of(policy()))
    again = gradients_of(*engine_of(policy(), activation_checkpointing=True))
    for name, gradient in kept.items():
        assert_close(again[name], gradient, rtol=1e-6, atol=1e-7)


def test_the_term_is_the_mean_of_all_depths_over_all_trained_tokens() -> None:
    """DeepSeek-V3's equations 24 and 25: a depth that a token is too early for adds nothing, and
    no denominator shrinks for it."""
    engine, rows = engine_of(policy())
    (found,) = train(engine, rows)
    trained = sum(LENGTHS) - sum(PROMPTS)
    reached = [
        sum(max(0, length - max(prompt, depth + 1)) for length, prompt in zip(LENGTHS, PROMPTS))  # noqa: B905
        for depth in (1, 2)
    ]
    assert reached == [25, 22]
    parts = [found["mtp/loss/1"] * reached[0], found["mtp/loss/2"] * reached[1]]
    assert found["loss/mtp"] == pytest.approx(sum(parts) / 2 / trained, rel=1e-5)


def test_heads_learn_to_see_ahead() -> None:
    """Thirty steps on six rows: each depth's loss falls, and drafts that were wrong are right."""
    engine, rows = engine_of(policy())
    held = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo), coefficient=0.0), MTP))
    first, *_, last = train(engine, rows, held, steps=30)
    for depth in (1, 2):
        assert last[f"mtp/loss/{depth}"] < 0.3 * first[f"mtp/loss/{depth}"]
        assert first[f"mtp/accepted/{depth}"] < 0.2
        assert last[f"mtp/accepted/{depth}"] > 0.8


def test_heads_and_their_optimizer_go_on_from_a_save(tmp_path: Path) -> None:
    """H1: two steps, a save, two steps elsewhere: bit for bit four steps."""
    straight, rows = engine_of(policy())
    train(straight, rows, steps=2)
    run(straight.save(tmp_path))
    train(straight, rows, steps=2)
    resumed, _ = engine_of(policy())
    run(resumed.load(tmp_path))
    train(resumed, rows, steps=2)
    wanted, found = straight._rank.masters, resumed._rank.masters
    for name, weight in {**wanted.weights(), **wanted.moments()}.items():
        assert torch.equal(weight, {**found.weights(), **found.moments()}[name]), name
    without, _ = engine_of(policy(), mtp_depths=0)
    with pytest.raises(CheckpointError, match=r"mtp\.0"):
        run(without.load(tmp_path))


def test_an_export_has_the_heads_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """H7: who loads the policy does not meet them."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = policy()
    engine, rows = engine_of(model)
    train(engine, rows)
    run(engine.export(tmp_path))
    loader: Any = AutoModelForCausalLM
    loaded, about = loader.from_pretrained(tmp_path, output_loading_info=True)
    assert not about["unexpected_keys"]
    assert not about["missing_keys"]
    ids = torch.arange(3, 9)[None]
    assert_close(loaded(input_ids=ids).logits, model.module(input_ids=ids).logits)
    saved = load_file(tmp_path / "mtp" / "model.safetensors")
    own = heads_of(engine)
    assert len(saved) == len(own)
    for name, weight in (
        ("model.layers.2.eh_proj.weight", "mtp.0.eh_proj.weight"),
        ("model.layers.3.shared_head.norm.weight", "mtp.1.norm.weight"),
        ("model.layers.3.self_attn.q_proj.weight", "mtp.1.block.self_attn.q_proj.weight"),
    ):
        assert torch.equal(saved[name], own[weight])


def test_heads_stand_beside_low_rank_adapters() -> None:
    """Both learn, the base does not."""
    model = policy()
    engine, rows = engine_of(model, lora=Lora(rank=2))
    frozen = engine._rank.base_digest()
    first, last = train(engine, rows, steps=2)
    assert last["mtp/loss/1"] < first["mtp/loss/1"]
    assert engine._rank.base_digest() == frozen
    assert not any("lora" in name for name in heads_of(engine))


def test_a_head_that_is_not_finite_skips_the_step() -> None:
    """J1, J2: whole, the policy's part too; the rows are blamed."""
    model = policy()
    engine, rows = engine_of(model)
    before = model.digest()
    with torch.no_grad():
        heads_of(engine)["mtp.0.norm.weight"].fill_(float("inf"))

    async def spoil() -> str:
        await engine.accumulate(BOTH.weigh(rows), BOTH)
        return (await engine.step()).cause

    assert "not finite for the samples" in run(spoil())
    assert model.digest() == before


def _with_policy(*, mtp_T: Tensor, policy_T: Tensor) -> Tensor:
    return mtp_T * policy_T


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ((MTP,), "alone"),
        ((POLICY, Term(name="mixed", loss=Loss(function=_with_policy))), "may not read policy"),
    ],
)
def test_an_objective_that_heads_cannot_follow_is_refused(
    terms: tuple[Term, ...], why: str
) -> None:
    """M2."""
    engine, rows = engine_of(policy())
    with pytest.raises(Unsupported, match=why):
        train(engine, rows, Objective(terms=terms))


@pytest.mark.parametrize(
    ("settings", "why"), [({"packing": Packing.PADDED}, "padded"), ({"value_head": True}, "critic")]
)
def test_an_engine_that_cannot_have_heads_is_not_built(settings: dict[str, Any], why: str) -> None:
    """M2."""
    with pytest.raises(Unsupported, match=why):
        engine_of(policy(), **settings)


def test_an_objective_without_such_a_term_runs_as_ever() -> None:
    """The heads get no gradient, and are moved by nothing but their decay."""
    alone, beside = policy(), policy()
    one, rows = engine_of(alone, mtp_depths=0)
    other, _ = engine_of(beside)
    assert isinstance(other._rank, ForesightRank)
    begun = {name: weight.clone() for name, weight in heads_of(other).items()}
    for engine in (one, other):
        train(engine, rows, Objective(terms=(POLICY,)), steps=2)
    assert alone.digest() == beside.digest()
    assert all(torch.equal(begun[name], weight) for name, weight in heads_of(other).items())
