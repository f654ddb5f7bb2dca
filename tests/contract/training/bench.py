"""Engines under test, and what they train."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors.torch import load_file
from tests.tiny import llama
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, Lora, build
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import TrainingEngine
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import Metrics
from hexpo.domain.objective import Loss, Objective, Proximal, Term

VOCABULARY = 61


class Letters:
    """A tokenizer whose id i is the letter number i."""

    identity, vocabulary, stop_ids = "letters", VOCABULARY, (2,)

    def save(self, folder: Path) -> None:
        (folder / "letters").write_text("")


@attrs.frozen(kw_only=True, eq=False)
class Bench:
    """An engine under test, and what the suite needs beside the port."""

    engine: TrainingEngine
    store: RowStore
    weights: Callable[[], dict[str, Tensor]]
    """Copies of the present weights by name."""
    logits: Callable[[Tensor], Tensor]
    """(L, V) logits of one row's ids."""


def tiny() -> Any:
    """A random Llama of two layers."""
    return llama(vocab_size=VOCABULARY)


def settings(overrides: dict[str, Any]) -> Config:
    """AdamW with a large epsilon is nearly plain gradient descent: weights then show gradients."""
    usual = {"learning_rate": 0.5, "epsilon": 1.0, "micro_tokens": 40, "reference": True}
    return Config(**{**usual, **overrides})


def fsdp(**overrides: Any) -> Bench:
    """The engine in one process."""
    policy = Policy(tiny(), precision=Precision.FP32)
    store = MemoryRowStore()
    engine = build(
        settings(overrides),
        policy=policy,
        store=store,
        tokenizer=Letters(),  # type: ignore[arg-type]
        temperature=0.8,
        total_steps=10,
        seed=4,
    )
    return Bench(
        engine=engine,
        store=store,
        weights=lambda: {n: p.detach().clone() for n, p in policy.module.named_parameters()},
        logits=lambda ids: policy.module(ids[None]).logits[0].detach(),
    )


def _beside(name: str) -> Any:
    """A module of the folder above, under a name by which other processes find it, too."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


elsewhere = _beside("training_engines")


broken, paid, spread = elsewhere.broken, elsewhere.paid, elsewhere.spread


@attrs.define
class Shared:
    """What engines of several ranks share, made when the first of them is."""

    run: Any = attrs.field(factory=elsewhere.Loop)
    pair: Any = None
    model: Path | None = None
    opened: list[tuple[TrainingEngine, Any]] = attrs.field(factory=list)
    """Engines of the present test, and their stores."""


SHARED = Shared()


def ranked(**overrides: Any) -> Bench:
    """The engine over two ranks in processes of their own."""
    if SHARED.pair is None:
        SHARED.pair = elsewhere.Pair(SHARED.run)
        SHARED.model = Path(tempfile.mkdtemp(dir=SHARED.pair.folder))
        tiny().save_pretrained(SHARED.model)
    engine, store = SHARED.pair.open(settings(overrides), SHARED.model, Letters())
    SHARED.opened.append((engine, store))

    def weights() -> dict[str, Tensor]:
        with tempfile.TemporaryDirectory() as folder:
            run(engine.export(Path(folder)))
            found: dict[str, Tensor] = load_file(Path(folder) / "model.safetensors")
            return {name: weight.clone() for name, weight in found.items()}

    def logits(ids: Tensor) -> Tensor:
        module = tiny()
        module.load_state_dict(weights())
        found: Tensor = module(ids[None]).logits[0].detach()
        return found

    return Bench(engine=engine, store=store, weights=weights, logits=logits)


ENGINES = {
    "fsdp": fsdp,
    "fsdp, padded": lambda **overrides: fsdp(packing=Packing.PADDED, **overrides),
    "fsdp, adapters": lambda **overrides: fsdp(lora=Lora(rank=4, dropout=0.2), **overrides),
    "two ranks": ranked,
}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return SHARED.run(work)


def rows_in(store: RowStore, *, seed: int = 1, first_id: int = 100) -> Sequences:
    """Two groups of three ragged answers, one of them wholly masked, put into the store."""
    draw = torch.Generator().manual_seed(seed)
    prompts, answers = [5, 5, 5, 3, 3, 3], [4, 1, 6, 2, 7, 3]
    texts = [torch.randint(3, VOCABULARY, (prompt,), generator=draw) for prompt in (5, 3)]
    lengths = torch.tensor(prompts) + torch.tensor(answers)
    tokens = torch.cat(
        [
            torch.cat((texts[row // 3], torch.randint(3, VOCABULARY, (n,), generator=draw)))
            for row, n in enumerate(answers)
        ]
    )
    owner = torch.repeat_interleave(lengths)
    position = torch.arange(len(tokens)) - (lengths.cumsum(0) - lengths)[owner]
    action = position >= torch.tensor(prompts)[owner]
    trained = action & (owner != 3)
    sequences = Sequences.of(
        {
            "id": torch.arange(first_id, first_id + 6),
            "group": torch.tensor([7, 7, 7, 9, 9, 9]),
            "length": lengths,
            "prompt_length": torch.tensor(prompts),
            "trained": torch.zeros(6, dtype=torch.int64).index_add(0, owner, trained.long()),
            "advantage": torch.randn(6, generator=draw),
        }
    )
    columns = {
        "token": tokens,
        "position": position,
        "action": action,
        "trained": trained,
        "reward": torch.rand(len(tokens), generator=draw),
        "behaviour": -torch.rand(len(tokens), generator=draw) * 4,
    }
    store.put(Batch.of(sequences, columns))
    return sequences


PPO = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo)),), proximal=Proximal.BEHAVIOUR)
GSPO = Objective(
    terms=(
        Term(
            name="gspo",
            loss=Loss(
                function=gspo, unit=Unit.SEQUENCE, options={"clip_low": 1.0, "clip_high": 1.0}
            ),
            mode=Mode.SEQ_MEAN_TOKEN_MEAN,
        ),
        Term(name="paid", loss=Loss(function=paid), mode=Mode.PROMPT_MEAN, coefficient=0.3),
    ),
    proximal=Proximal.BEHAVIOUR,
)


def train(bench: Bench, rows: Sequences, objective: Objective, *, parts: int = 1) -> Metrics:
    async def once() -> Metrics:
        weighed = objective.weigh(rows)
        metrics: Metrics = {}
        for places in torch.arange(len(rows)).chunk(parts):
            metrics = await bench.engine.accumulate(weighed.select(places), objective)
        result = await bench.engine.step()
        assert result.applied
        return {**metrics, **result.metrics}

    return run(once())  # type: ignore[no-any-return]


def close_weights(one: Bench, other: Bench) -> None:
    for (name, a), b in zip(one.weights().items(), other.weights().values(), strict=True):
        assert_close(a, b, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
