"""Two ranks in processes of their own train what one process trains."""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.cluster import local
from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.stores import mapped
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training import fsdp, host
from hexpo.adapters.training.fsdp.config import OF_SEVERAL_RANKS
from hexpo.adapters.training.fsdp.ranks import RANK, Model
from hexpo.adapters.training.host.order import laid_out
from hexpo.adapters.transfer.disk import build_receiver
from hexpo.application.ports.cluster import Cluster
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.transfer import Update
from hexpo.domain.advantages.gae import gae
from hexpo.domain.aggregate import Mode
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import EngineFailed, WrongBatch
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.catalogue import LOSSES
from hexpo.domain.losses.value import value
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.preference.catalogue import PREFERENCES

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


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder: Path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = local.Config(oversubscribe=True)
    cluster = local.build(config, folder=tmp_path_factory.mktemp("run"))
    yield cluster
    loop(cluster.close())


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


@pytest.fixture(scope="module")
def two(
    loop: Loop, cluster: Cluster, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twins]:
    folder = tmp_path_factory.mktemp("two")
    twins = twins_of(loop, cluster, model, folder, ranks=2, name="two")
    yield twins
    twins.close()


TEAMS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel": 2},
    "sequence": {"sequence_parallel": 2},
}


@pytest.fixture(scope="module")
def pair(loop: Loop) -> Iterator[Any]:
    """Two processes in which engines are made, one after the other: each start costs seconds."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
    try:
        engines: Any = importlib.import_module("training_engines")
    finally:
        sys.path.pop(0)
    pair = engines.Pair(loop)
    yield pair
    pair.close()


@pytest.fixture(scope="module", params=TEAMS)
def team(
    request: pytest.FixtureRequest,
    loop: Loop,
    pair: Any,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Twins]:
    more = TEAMS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    engine, store = pair.open(fsdp.Config(**{**SETTINGS, **more}), model, Letters())
    twins = twins_with(loop, engine, store, model, folder, **more)
    yield twins
    twins.close()


@pytest.fixture(autouse=True)
def _afresh(request: pytest.FixtureRequest) -> None:
    for name in {"two", "team"} & set(request.fixturenames):
        request.getfixturevalue(name).reset()


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


@pytest.mark.parametrize("name", LOSSES)
def test_every_policy_loss_trains_over_two_ranks_as_in_one_process(two: Twins, name: str) -> None:
    """A1, N1: three steps of ragged packed rows in many micro-batches, 1e-5 in weights and losses;
    one of the calls cannot give both ranks as much."""
    objective = term(name, LOSSES[name])
    for step in range(3):
        sequences = two.put(seed=1 + step)
        train(two, objective, sequences)
        two.drop(sequences)
    two.require_equal()


@pytest.mark.parametrize("name", LOSSES)
def test_every_policy_loss_trains_by_a_team_of_ranks_as_in_one_process(
    team: Twins, name: str
) -> None:
    """A1: weights cut, or tokens cut, in packed rows and many micro-batches; 1e-5."""
    objective = term(name, LOSSES[name])
    sequences = team.put(seed=1)
    train(team, objective, sequences)
    team.drop(sequences)
    team.require_equal()


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_team_of_ranks_trains_pairs(team: Twins, name: str) -> None:
    """A6: the rows of a pair are where all rows are."""
    objective = term(name, PREFERENCES[name])
    sequences = team.put(seed=5)
    train(team, objective, sequences, cut=4)
    team.drop(sequences)
    team.require_equal(moved=1e-6)


def test_a_team_of_ranks_scores_what_one_process_scores(team: Twins) -> None:
    """C1: log-probs, entropy and squares from a cut head, and those of the reference."""
    sequences = team.put(seed=9)
    train(team, PPO, sequences)
    later = team.put(seed=10, without="old")
    bare = team.put(seed=31, without="reference")
    for engine in (team.ranks, team.one):
        team.run(engine.score(later, ("old", "entropy", "squares")))
        team.run(engine.view("reference").score(bare, ("reference",)))
    for rows, name in ((later, "old"), (later, "entropy"), (later, "squares"), (bare, "reference")):
        ours, theirs = (store.get(rows.ids, [name])[name] for store in team.stores)
        assert_close(ours, theirs, rtol=0, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")
        assert ours.abs().max() > 0
    for each in (sequences, later, bare):
        team.drop(each)


def test_a_save_of_a_team_goes_on_in_one_process_and_back(team: Twins, tmp_path: Path) -> None:
    """H1, H8: parts of both axes come together, and apart again."""
    sequences = team.put(seed=14)
    train(team, PPO, sequences)
    team.run(team.ranks.save(tmp_path / "team"))
    team.run(team.one.load(tmp_path / "team"))
    ours, theirs = team.weights()
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    team.run(team.one.save(tmp_path / "one"))
    team.reset()
    team.run(team.ranks.load(tmp_path / "one"))
    again, _ = team.weights()
    assert all(torch.equal(again[name], weight) for name, weight in theirs.items())
    team.run(team.one.load(tmp_path / "one"))
    train(team, PPO, sequences)
    team.drop(sequences)
    team.require_equal()


def test_a_team_skips_a_row_that_is_not_finite_and_goes_on(team: Twins) -> None:
    """O18, J1: all ranks of a team see the same row; it is named once."""
    sequences = team.put(seed=8)
    spoilt = sequences.with_columns(advantage=sequences["advantage"].clone())
    spoilt["advantage"][4] = float("nan")
    team.run(team.ranks.accumulate(PPO.weigh(spoilt), PPO))
    result = team.run(team.ranks.step())
    assert not result.applied
    assert result.cause.count("804") == 1
    train(team, PPO, sequences)
    team.drop(sequences)
    team.require_equal()


@pytest.mark.parametrize("name", ["dpo", "simpo", "kto"])
def test_pairs_stay_on_one_rank(two: Twins, name: str) -> None:
    """A6: a pair's loss needs both rows."""
    objective = term(name, PREFERENCES[name])
    sequences = two.put(seed=5)
    train(two, objective, sequences, cut=4)
    two.drop(sequences)
    two.require_equal(moved=1e-6)


def test_one_row_over_two_ranks_trains(two: Twins) -> None:
    """O4, O23.3: the other rank adds a gradient of 0."""
    sequences = two.put(seed=6, lengths=[7, 5])
    train(two, PPO, sequences, cut=1)
    two.drop(sequences)
    two.require_equal()


def test_ranks_with_unequal_numbers_of_micro_batches_end_and_agree(two: Twins) -> None:
    """O23.2: rows 8, 8, 8 on one rank and 2, 2 on the other, with room for three rows of 8 in no
    micro-batch."""
    sequences = two.put(seed=7, lengths=[24, 24, 24, 4, 4])
    weighed = PPO.weigh(sequences)
    columns = {"weights", "advantage"}
    packed = laid_out(weighed, [3, 2], columns, PPO)
    found = two.run(two.ranks._ranks.all("accumulate", packed, 0, 0))
    assert [count for _, count in found] == [3, 3]
    two.run(two.ranks._ranks.all("finish", 0))
    two.run(two.one.accumulate(weighed, PPO))
    two.run(two.one.step())
    two.drop(sequences)
    two.require_equal()


def test_a_row_that_is_not_finite_on_one_rank_skips_the_step_on_both(two: Twins) -> None:
    """O18, J1, J2: weights and moments as before, the sample is named, the next step is normal."""
    sequences = two.put(seed=8)
    train(two, PPO, sequences)
    before, _ = two.weights()
    spoilt = sequences.with_columns(advantage=sequences["advantage"].clone())
    spoilt["advantage"][4] = float("nan")
    for engine in (two.ranks, two.one):
        two.run(engine.accumulate(PPO.weigh(spoilt), PPO))
        result = two.run(engine.step())
        assert not result.applied
        assert "804" in result.cause
        assert "803" not in result.cause
        assert values(result.metrics) == {"train/skipped_steps": 1}
    after, _ = two.weights()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    train(two, PPO, sequences)
    two.drop(sequences)
    two.require_equal()


def test_ranks_write_the_columns_of_their_own_rows(two: Twins) -> None:
    """C1: `entropy`, `squares` and the reference view, in the rows' own token order."""
    sequences = two.put(seed=9)
    train(two, PPO, sequences)
    later = two.put(seed=10)
    for engine in (two.ranks, two.one):
        two.run(engine.score(later, ("entropy", "squares")))
    for name in ("entropy", "squares"):
        ours, theirs = (store.get(later.ids, [name])[name] for store in two.stores)
        assert_close(ours, theirs, rtol=0, atol=2e-5)
        assert ours.abs().max() > 0
    for each in (sequences, later):
        two.drop(each)


@pytest.mark.parametrize("name", ["full", "full_top_k"])
def test_distributions_are_compared_over_two_ranks_as_in_one_process(two: Twins, name: str) -> None:
    """A1, S1: ids that the reference kept, and its whole distribution from the parts that ranks
    hold of it; in one call a rank has no row, and runs the reference with the other."""
    terms = (*PPO.terms, Term(name="kl", loss=kl_loss(name), coefficient=2.0))
    objective = Objective(terms=terms, proximal=Proximal.STORED)
    first = two.put(seed=21)
    train(two, PPO, first)
    sequences = two.put(seed=22)
    for engine in (two.ranks, two.one):
        kept = ("reference_topk", "reference_ids")
        two.run(engine.view("reference").score(sequences, kept))
    train(two, objective, sequences, cut=1)
    for each in (first, sequences):
        two.drop(each)
    two.require_equal()


def test_a_token_estimator_runs_where_the_rows_lie(two: Twins) -> None:
    """X4: statistics span all rows, whatever rank trains them."""
    sequences = two.put(seed=11, without="return")
    bare = sequences.without("advantage")
    estimator = Estimator(function=gae, options={"gamma": 1.0, "lam": 0.95})
    for engine in (two.ranks, two.one):
        two.run(engine.compute(bare, estimator))
    ours, theirs = (store.get(bare.ids, ["advantage"])["advantage"] for store in two.stores)
    assert_close(ours, theirs)
    assert ours.abs().max() > 0
    two.drop(sequences)


def test_what_one_rank_cannot_find_is_refused_by_all_and_the_engine_lives(two: Twins) -> None:
    """O5: the rank that lacks a row says which; no rank waits for another."""
    sequences = two.put(seed=12)
    two.stores[0].drop(sequences.ids[2:3])
    with pytest.raises(WrongBatch, match="1202"):
        two.run(two.ranks.accumulate(PPO.weigh(sequences), PPO))
    other = two.put(seed=13)
    train(two, PPO, other)
    two.drop(other)
    two.require_equal()


def test_a_save_of_two_ranks_goes_on_in_one_process_and_back(two: Twins, tmp_path: Path) -> None:
    """H1, H8: any number of ranks reads what another number wrote, moments and counts included."""
    sequences = two.put(seed=14)
    train(two, PPO, sequences)
    two.run(two.ranks.publish())
    two.run(two.ranks.save(tmp_path / "two"))
    two.run(two.one.load(tmp_path / "two"))
    assert two.one.version == 1
    two.run(two.one.save(tmp_path / "one"))
    for kind in ("weights", "moments"):
        parts = [
            load_file(tmp_path / "two" / f"{kind}-0000{n}-of-00002.safetensors") for n in (1, 2)
        ]
        for name, whole in load_file(tmp_path / "one" / f"{kind}.safetensors").items():
            pieces = [part[name] for part in parts]
            joined = torch.cat(pieces) if whole.dim() else pieces[0]
            assert torch.equal(joined, whole), name
    two.reset()
    two.run(two.ranks.load(tmp_path / "one"))
    ours, theirs = two.weights()
    two.run(two.one.load(tmp_path / "one"))
    assert all(torch.equal(ours[n], w) for n, w in two.weights()[1].items())
    train(two, PPO, sequences)
    two.drop(sequences)
    two.require_equal()
    assert theirs.keys() == ours.keys()


def test_the_stream_that_ranks_send_is_what_one_process_exports(two: Twins, tmp_path: Path) -> None:
    """G2, O14: every weight under its exported name, a tied head once, bit for bit."""
    sequences = two.put(seed=15)
    train(two, PPO, sequences)
    two.drop(sequences)
    address = {"folder": str(tmp_path), "keep": 1, "bucket": 2**20}
    update = Update(version=3, address=address)
    digest = two.run(two.ranks.send(update))
    got = {name: tensor.clone() for name, tensor in build_receiver(reader="test")(update)}
    exported, _ = two.weights()
    assert "lm_head.weight" not in got
    assert digest.tensors == len(got)
    for name, tensor in got.items():
        assert torch.equal(tensor, exported[name]), name
    two.require_equal()


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_are_stopped(
    loop: Loop, cluster: Cluster, model: Path
) -> None:
    """O3, O5: the death is the cause, not what the other rank says of its connection."""
    store = mapped.build()
    engine = ranks_of(loop, cluster, model, store, ranks=2, name="doomed")
    batch = rows(16, [9, 8, 7, 6])
    store.put(batch)
    weighed = PPO.weigh(batch.sequences)
    loop(engine.accumulate(weighed, PPO))
    os.kill(engine._ranks._processes[1].pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(
            EngineFailed, match=r"doomed-1 (died|is gone).*SIGKILL|doomed-1.*SIGKILL"
        ):
            loop(engine.accumulate(weighed, PPO))
    deaths = [loop(process.death()) for process in engine._ranks._processes]
    assert len(deaths) == 2
    loop(engine.close())
    loop(engine.close())
    store.close()


@pytest.mark.slow
def test_a_critic_trains_over_two_ranks_as_in_one_process(
    loop: Loop, cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    """A1: its head starts at 0, and lies on one rank."""
    twins = twins_of(
        loop, cluster, model, tmp_path, ranks=2, name="critic", value_head=True, reference=False
    )
    objective = Objective(terms=(Term(name="value", loss=Loss(function=value)),))
    for step in range(3):
        sequences = twins.put(seed=20 + step)
        train(twins, objective, sequences)
        twins.drop(sequences)
    later = twins.put(seed=30, without="value")
    for engine in (twins.ranks, twins.one):
        loop(engine.score(later, ("value",)))
    ours, theirs = (store.get(later.ids, ["value"])["value"] for store in twins.stores)
    assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert ours.abs().max() > 0
    loop(twins.ranks.close())
    loop(twins.one.close())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (1, {}),
        (2, {"lora": Lora(rank=4), "activation_checkpointing": True}),
        (2, {"reduce_late": True, "keep_gathered": True, "cpu_offload": True}),
    ],
    ids=["one rank", "adapters and recomputing", "late sums, whole layers, host memory"],
)
def test_every_way_to_hold_the_weights_trains_the_same(
    loop: Loop, cluster: Cluster, model: Path, tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    """A1: one rank, adapters, and each setting of memory; three steps."""
    name = f"way-{abs(hash(tuple(more)))}"
    twins = twins_of(loop, cluster, model, tmp_path, ranks=ranks, name=name, **more)
    for step in range(3):
        sequences = twins.put(seed=40 + step)
        train(twins, PPO, sequences)
        twins.drop(sequences)
    twins.require_equal()
    loop(twins.ranks.close())
    loop(twins.one.close())


def test_an_order_and_a_store_are_small_on_the_way() -> None:
    """X4: rows travel by id, whatever they hold."""
    store = mapped.build()
    batch = rows(50, [400] * 64)
    store.put(batch)
    assert len(pickle.dumps(store)) < 3000
    assert len(laid_out(PPO.weigh(batch.sequences), [32, 32], {"weights"}, PPO)) < 12000
    store.close()
