"""The same model over ranks and in one process, and the rows that both get."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.stores import mapped
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training import fsdp, host
from hexpo.adapters.training.fsdp.config import OF_SEVERAL_RANKS
from hexpo.adapters.training.fsdp.ranks import RANK, Model
from hexpo.application.ports.cluster import Cluster
from hexpo.application.ports.store import RowStore
from hexpo.domain.aggregate import Mode
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.losses.catalogue import LOSSES
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Proximal, Term

SEED, TEMPERATURE, STEPS, VOCABULARY = 4, 0.8, 10, 61
LENGTHS = (9, 6, 14, 5, 11, 8, 7, 10)
SETTINGS = {
    "learning_rate": 0.5,
    "epsilon": 1.0,
    "micro_tokens": 24,
    "reference": True,
}


class Letters:
    identity, vocabulary, stop_ids = "letters", VOCABULARY, (2,)

    def save(self, folder: Path) -> None:
        (folder / "letters").write_text("")


class Loop:
    """An event loop in a thread of its own, so that several tests use the same processes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(100)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@attrs.frozen(eq=False)
class Twins:
    """The same model over ranks and in one process, each with its rows."""

    run: Loop
    ranks: host.RankedEngine
    one: fsdp.FsdpEngine
    stores: tuple[RowStore, RowStore]
    start: Path
    """A save of the untrained model."""
    folder: Path
    first: dict[str, Tensor] = attrs.field(factory=dict)
    """The untrained model's weights."""

    def reset(self) -> None:
        for engine in (self.ranks, self.one):
            self.run(engine.load(self.start))

    def weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Of both."""
        found = []
        for name, engine in (("ranks", self.ranks), ("one", self.one)):
            self.run(engine.export(self.folder / name))
            found.append(load_file(self.folder / name / "model.safetensors"))
        return found[0], found[1]

    def require_equal(self, *, moved: float = 1e-4) -> None:
        """Weights agree to 1e-5, and have left the start by so much."""
        ranks, one = self.weights()
        assert set(ranks) == set(one)
        for name, weight in one.items():
            assert_close(ranks[name], weight, rtol=0, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
        assert max(float((self.first[n] - w).abs().max()) for n, w in one.items()) > moved

    def put(self, *, seed: int, lengths: Collection[int] = LENGTHS, without: str = "") -> Sequences:
        batch = rows(seed, list(lengths))
        kept = {name: column for name, column in batch.columns.items() if name != without}
        batch = Batch.of(batch.sequences, kept)
        for store in self.stores:
            store.put(batch)
        return batch.sequences

    def drop(self, sequences: Sequences) -> None:
        for store in self.stores:
            store.drop(sequences.ids)

    def close(self) -> None:
        self.run(self.ranks.close())
        self.run(self.one.close())
        self.stores[0].close()  # type: ignore[attr-defined]


def rows(seed: int, lengths: list[int]) -> Batch:
    """Pairs of answers of ragged lengths, with every column that a policy loss reads."""
    draw = torch.Generator().manual_seed(seed)
    count, total = len(lengths), sum(lengths)
    owner = torch.repeat_interleave(torch.tensor(lengths))
    starts = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    position = torch.arange(total) - starts[owner]
    action = position >= 2
    trained = action & (torch.rand(total, generator=draw) > 0.1)
    groups = torch.arange(count) // 2
    tokens = torch.randint(3, VOCABULARY, (total,), generator=draw)
    tokens[position < 2] = (3 + groups)[owner[position < 2]]
    behaviour = -4.1 + torch.randn(total, generator=draw) * 0.1
    sequences = Sequences.of(
        {
            "id": 100 * seed + torch.arange(count),
            "group": groups,
            "length": torch.tensor(lengths),
            "prompt_length": torch.full((count,), 2),
            "trained": torch.zeros(count, dtype=torch.int64).index_add(0, owner, trained.long()),
            "advantage": torch.randn(count, generator=draw),
            "scored": torch.ones(count, dtype=torch.bool),
            "chosen": torch.arange(count) % 2 == 0,
            "reference_point": torch.full((count,), 0.1),
        }
    )
    columns = {
        "token": tokens,
        "position": position,
        "action": action,
        "trained": trained,
        "behaviour": behaviour,
        "old": behaviour + torch.randn(total, generator=draw) * 0.05,
        "reference": behaviour + torch.randn(total, generator=draw) * 0.05,
        "covariant": torch.rand(total, generator=draw) > 0.7,
        "reward": torch.rand(total, generator=draw),
        "return": torch.rand(total, generator=draw),
        "value": torch.rand(total, generator=draw),
    }
    return Batch.of(sequences, columns)


def ranks_of(
    loop: Loop,
    cluster: Cluster,
    model: Path,
    store: RowStore,
    *,
    ranks: int,
    name: str,
    **more: Any,
) -> host.RankedEngine:
    settings = fsdp.Config(**{**SETTINGS, **more})
    launch = host.Launch(
        backend=RANK,
        name=name,
        value=Model(
            config=settings,
            path=str(model),
            precision=Precision.FP32,
            temperature=TEMPERATURE,
            total_steps=STEPS,
            seed=SEED,
        ),
        send=("hexpo.infrastructure.serve:sender_of", "disk"),
        environment={"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"},
    )
    config = host.Config(ranks=ranks, collective_seconds=60, grace_seconds=3)
    started = host.start(config, launch, cluster=cluster, store=store, tokenizer=Letters())  # type: ignore[arg-type]
    engine: host.RankedEngine = loop(started)
    return engine


def twins_of(
    loop: Loop, cluster: Cluster, model: Path, folder: Path, *, ranks: int, name: str, **more: Any
) -> Twins:
    store = mapped.build()
    engine = ranks_of(loop, cluster, model, store, ranks=ranks, name=name, **more)
    return twins_with(loop, engine, store, model, folder, **more)


def twins_with(
    loop: Loop,
    engine: host.RankedEngine,
    store: RowStore,
    model: Path,
    folder: Path,
    **more: Any,
) -> Twins:
    stores = store, MemoryRowStore()
    own = {name: value for name, value in more.items() if name not in OF_SEVERAL_RANKS}
    one = fsdp.build(
        fsdp.Config(**{**SETTINGS, "micro_tokens": 1000, **own}),
        policy=load_policy(str(model), precision=Precision.FP32),
        store=stores[1],
        tokenizer=Letters(),  # type: ignore[arg-type]
        temperature=TEMPERATURE,
        total_steps=STEPS,
        seed=SEED,
    )
    loop(one.save(folder / "start"))
    twins = Twins(loop, engine, one, stores, folder / "start", folder)
    twins.reset()  # adapters begin at random
    twins.first.update(twins.weights()[0])
    return twins


def term(name: str, entry: Any) -> Objective:
    options = {"clip_low": 0.2, "clip_high": 0.2} if "gspo" in name else {}
    loss = Loss(function=entry.function, unit=entry.unit, measures=entry.measures, options=options)
    mode = entry.default_mode or Mode.TOKEN_MEAN
    return Objective(terms=(Term(name=name, loss=loss, mode=mode),), proximal=Proximal.STORED)


PPO = term("ppo", LOSSES["ppo"])


def train(twins: Twins, objective: Objective, sequences: Sequences, *, cut: int = 3) -> None:
    """One optimizer step of both, in two calls; what they report is the same."""
    weighed = objective.weigh(sequences)
    parts = [weighed.select(slice(0, cut)), weighed.select(slice(cut, len(weighed)))]
    reported = []
    for engine in (twins.ranks, twins.one):
        found = [twins.run(engine.accumulate(part, objective)) for part in parts]
        result = twins.run(engine.step())
        assert result.applied, result.cause
        reported.append([values(metrics) for metrics in (*found, result.metrics)])
    for ours, theirs in zip(*reported, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
