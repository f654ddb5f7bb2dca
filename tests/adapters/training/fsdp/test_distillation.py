"""The engine with terms that compare distributions, against whole logits and over every split."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from tests.adapters.training.fsdp import made
from tests.tiny import llama
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, FsdpEngine, build_frozen
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.distillation.losses import forward_kl, reverse_kl, topk_measures
from hexpo.domain.errors import Unsupported
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Split, Term

LENGTHS = torch.tensor([9, 4, 7, 6])
TEMPERATURE = 0.7
VOCABULARY = 61


def policy(seed: int = 0) -> Policy:
    module = llama(seed=seed, vocab_size=VOCABULARY, initializer_range=0.2)
    return Policy(module, precision=Precision.FP32)


engine_of = partial(made.engine_of, temperature=TEMPERATURE)


def rows_in(store: MemoryRowStore) -> Sequences:
    """Four rows of two prompts; the tokens of a prompt are the same in its rows."""
    draw = torch.Generator().manual_seed(3)
    tokens = [torch.randint(3, VOCABULARY, (int(n),), generator=draw) for n in LENGTHS]
    tokens[1][:2], tokens[3][:2] = tokens[0][:2], tokens[2][:2]
    position = torch.cat([torch.arange(int(n)) for n in LENGTHS])
    action = position >= 2
    sequences = Sequences.of(
        {
            "id": torch.arange(4),
            "group": torch.tensor([0, 0, 1, 1]),
            "length": LENGTHS,
            "prompt_length": torch.full((4,), 2),
            "trained": LENGTHS - 2,
            "taught_by": torch.tensor([0, 1, 1, 0]),
            "advantage": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        }
    )
    columns = {"token": torch.cat(tokens), "position": position, "action": action}
    store.put(Batch.of(sequences, {**columns, "trained": action}))
    return sequences


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


FORWARD = Term(name="distillation", loss=Loss(function=forward_kl, measures=topk_measures))
PPO = Term(name="policy", loss=Loss(function=ppo))
GSPO = Term(
    name="policy",
    loss=Loss(function=gspo, unit=Unit.SEQUENCE),
    mode=Mode.SEQ_MEAN_TOKEN_MEAN,
)
FULL = Term(name="kl", loss=kl_loss("full"), coefficient=0.5)
TOP_K = Term(name="kl", loss=kl_loss("full_top_k"), coefficient=0.5)


async def _learn(
    engine: FsdpEngine, store: MemoryRowStore, terms: tuple[Term, ...], *, settings: dict[str, Any]
) -> dict[str, float]:
    """Score what the terms read, and accumulate; no step."""
    objective = Objective(terms=terms)
    rows = rows_in(store)
    read = objective.token_columns
    teacher = build_frozen(
        Config(**settings), policy=policy(seed=5), store=store, temperature=TEMPERATURE,
        column="teacher",
    )  # fmt: skip
    if names := [name for name in read if name.startswith("teacher")]:
        await teacher.score(rows, names)
    if names := [name for name in read if name.startswith("reference")]:
        await engine.view("reference").score(rows, names)
    return values(await engine.accumulate(objective.weigh(rows), objective))


def learn(*terms: Term, **settings: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients by name and metrics, of a policy that has left its reference."""
    model = policy()
    engine, store = engine_of(model, **settings)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "mlp" in name and parameter.requires_grad and "lora" not in name:
                parameter += 0.05
            if "lora_B" in name:
                parameter += 0.1
    metrics = run(_learn(engine, store, terms, settings=settings if "lora" not in settings else {}))
    parameters = dict(model.module.named_parameters())
    gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    run(engine.close())
    return gradients, metrics


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert_close(first[name], second[name], rtol=1e-5, atol=1e-6, msg=name)


SPLITS: list[dict[str, Any]] = [
    {"micro_tokens": 1},
    {"packing": Packing.PADDED},
    {"micro_tokens": 1, "packing": Packing.PADDED, "head_tokens": 4},
    {"head_tokens": 1},
]


@pytest.mark.parametrize(
    "terms",
    [(FORWARD,), (PPO, FORWARD), (GSPO, FORWARD), (PPO, TOP_K), (PPO, FULL), (GSPO, FULL)],
    ids=lambda terms: "+".join(f"{one.name}:{one.loss.function.__name__}" for one in terms),
)
def test_no_split_packing_or_chunk_changes_a_gradient(terms: tuple[Term, ...]) -> None:
    """A1, A6, O24: whole rows, one row at a time, packed and padded."""
    wanted = {"top_k": 5, "reference": True}
    gradients, metrics = learn(*terms, **wanted)
    for split in SPLITS:
        again, measured = learn(*terms, **wanted, **split)
        same(again, gradients)
        assert measured == pytest.approx(metrics, rel=1e-5, abs=1e-6), split


def test_terms_together_are_the_sum_of_terms_alone() -> None:
    """A loss of rows and one of distributions take two ways through the head."""
    wanted = {"top_k": 5, "reference": True}
    together, metrics = learn(GSPO, FORWARD, FULL, **wanted)
    parts = [learn(term, **wanted) for term in (GSPO, FORWARD, FULL)]
    summed = {name: sum(part[0][name] for part in parts) for name in together}
    same(together, summed)  # type: ignore[arg-type]
    for name in ("loss/policy", "loss/distillation", "loss/kl"):
        assert metrics[name] == pytest.approx(sum(part[1].get(name, 0.0) for part in parts))
    assert metrics["train/tokens"] == 18.0


def dense(model: Policy, tokens: list[Tensor]) -> Tensor:
    """(M, V) log-probs that predict each action, from a module that is run row by row."""
    found = []
    for row in tokens:
        logits = model.module(input_ids=row[None]).logits[0] / TEMPERATURE
        found.append(logits.log_softmax(-1)[1:-1])
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "full"])
def test_gradients_are_those_of_whole_logits(kind: str) -> None:
    """A1, S1: with all ids kept the divergence is the full one; autograd through the module."""
    losses = {"forward_kl": forward_kl, "reverse_kl": reverse_kl}
    term = (
        attrs.evolve(FULL, coefficient=1.0)
        if kind == "full"
        else attrs.evolve(FORWARD, loss=Loss(function=losses[kind], options={"tail": False}))
    )
    gradients, metrics = learn(term, top_k=1000, reference=True, native_kernels=False)
    model, store = policy(), MemoryRowStore()
    other = policy() if kind == "full" else policy(seed=5)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if "mlp" in name:
                parameter += 0.05
    rows = rows_in(store)
    tokens = list(torch.split(store.get(rows.ids, ["token"])["token"], LENGTHS.tolist()))
    student_MV, teacher_MV = dense(model, tokens), dense(other, tokens).detach()
    first, second = (teacher_MV, student_MV) if kind == "forward_kl" else (student_MV, teacher_MV)
    loss = (first.exp() * (first - second)).sum(-1).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    name = "loss/kl" if kind == "full" else "loss/distillation"
    assert metrics[name] == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.module.named_parameters():
        assert parameter.grad is not None
        assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_adapters_are_compared_with_their_own_base() -> None:
    """The reference of low-rank adapters is the model without them; its head is the same."""
    lora = Lora(rank=2)
    whole, metrics = learn(FULL, lora=lora)
    again, measured = learn(FULL, lora=lora, micro_tokens=1)
    same(again, whole)
    assert metrics["kl/kl"] == pytest.approx(measured["kl/kl"])
    assert metrics["kl/kl"] > 1e-3


def test_a_top_k_keeps_k_numbers_a_token_and_bounds_the_divergence() -> None:
    """S1: memory grows with tokens x K; the coarse value is below the full one."""
    _, coarse = learn(TOP_K, top_k=5, reference=True)
    _, exact = learn(FULL, reference=True)
    assert 0 < coarse["kl/kl"] < exact["kl/kl"]
    assert 0 < coarse["kl/reference_kept_mass"] < 1
    store = MemoryRowStore()
    rows = rows_in(store)
    asked = policy(5)
    teacher = build_frozen(
        Config(top_k=30), policy=asked, store=store, temperature=TEMPERATURE, column="teacher"
    )
    assert teacher.width == 30
    told = values(run(teacher.score(rows, {"teacher", "teacher_topk", "teacher_ids"})))
    assert told == {"score/tokens": 26.0, "score/unusable": 0.0}
    kept = store.get(rows.ids, ["teacher", "teacher_topk", "teacher_ids", "token", "action"])
    assert kept["teacher_topk"].shape == kept["teacher_ids"].shape == (26, 30)
    found = kept["teacher_ids"] == kept["token"][:, None]
    among_T = found.any(-1) & kept["action"]
    assert bool(among_T.any())  # where the sampled id is among the kept, both columns agree
    assert_close(kept["teacher_topk"][found & kept["action"][:, None]], kept["teacher"][among_T])
    with torch.no_grad():
        asked.module.get_parameter("model.norm.weight")[0] = torch.nan
    store.drop(rows.ids)
    told = values(run(teacher.score(rows_in(store), {"teacher", "teacher_topk"})))
    assert told["score/unusable"] == 18.0  # all sampled tokens
    with pytest.raises(Unsupported, match="teacher_topk"):
        run(teacher.score(rows, {"old"}))


def test_metrics_of_each_teacher_add_up_to_those_of_the_term() -> None:
    """S5: loss, kept mass and tokens by teacher."""
    split = Split(column="taught_by", names=("sums", "words"))
    term = attrs.evolve(FORWARD, split=split)
    plain, whole = learn(FORWARD, top_k=5)
    gradients, metrics = learn(term, top_k=5)
    same(gradients, plain)
    own = [metrics[f"loss/distillation/{name}"] for name in split.names]
    assert sum(own) == pytest.approx(whole["loss/distillation"])
    assert [metrics[f"distillation/{name}/tokens"] for name in split.names] == [11.0, 7.0]
    masses = [metrics[f"distillation/{name}/teacher_kept_mass"] for name in split.names]
    assert masses[0] != masses[1]
    mean = (11 * masses[0] + 7 * masses[1]) / 18
    assert mean == pytest.approx(whole["distillation/teacher_kept_mass"])


def test_a_loss_of_distributions_that_mixes_tokens_is_refused() -> None:
    """M3: it never sees more than a chunk of them."""

    def mixing(*, policy_topk_T: Tensor, owner_T: Tensor) -> Tensor:
        return policy_topk_T.sum(-1)[owner_T * 0]

    with pytest.raises(Unsupported, match="may not read `owner`"):
        learn(Term(name="mixing", loss=Loss(function=mixing)), top_k=5)
