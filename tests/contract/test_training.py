"""What every training engine promises. Engines whose model is a tiny random one, on a CPU."""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import llama
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, Lora, Schedule, build
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.training import TrainingEngine
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import CheckpointError, EngineFailed, Unsupported, WrongBatch
from hexpo.domain.estimators import Estimator
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import Metrics, values
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
    """A module of this folder, under a name by which other processes find it, too."""
    sys.path.insert(0, str(Path(__file__).parent))
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


@pytest.fixture(scope="module", autouse=True)
def _end() -> Iterator[None]:
    yield
    if SHARED.pair is not None:
        SHARED.pair.close()
    SHARED.run.close()


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while SHARED.opened:
        engine, store = SHARED.opened.pop()
        run(engine.close())
        store.close()


@pytest.fixture(params=list(ENGINES))
def make(request: pytest.FixtureRequest) -> Callable[..., Bench]:
    return ENGINES[request.param]


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


@pytest.mark.parametrize("objective", [PPO, GSPO], ids=["token", "sequence"])
@pytest.mark.parametrize(("micro_tokens", "parts"), [(1, 1), (20, 1), (1000, 2), (25, 6)])
def test_no_split_changes_the_weights_after_a_step(
    objective: Objective, micro_tokens: int, parts: int
) -> None:
    """A1, A6: micro-batches of one row, of some, of all; parts of a step in several calls."""
    whole, split = fsdp(micro_tokens=1000), fsdp(micro_tokens=micro_tokens)
    before = whole.weights()
    train(whole, rows_in(whole.store), objective)
    train(split, rows_in(split.store), objective, parts=parts)
    close_weights(whole, split)
    moved = max(
        float((a - b).abs().max())
        for a, b in zip(before.values(), whole.weights().values(), strict=True)
    )
    assert moved > 1e-3


@pytest.mark.parametrize("objective", [PPO, GSPO], ids=["token", "sequence"])
def test_packed_rows_train_like_padded_ones(objective: Objective) -> None:
    """A1: no padding width changes a gradient; activation checkpointing does neither."""
    packed, padded = fsdp(), fsdp(packing=Packing.PADDED)
    saving = fsdp(activation_checkpointing=True, native_kernels=False, head_tokens=3)
    for bench in (packed, padded, saving):
        train(bench, rows_in(bench.store), objective)
    close_weights(packed, padded)
    close_weights(packed, saving)


@pytest.mark.parametrize("micro_tokens", [1, 1000])
@pytest.mark.parametrize(
    ("mode", "constant", "wanted"),
    [
        (Mode.TOKEN_MEAN, None, 1.5),
        (Mode.SEQ_MEAN_TOKEN_MEAN, None, 2.0),
        (Mode.SEQ_MEAN_TOKEN_SUM_NORM, 12.0, 0.5),
    ],
)
def test_the_reported_loss_is_that_of_the_whole_step(
    make: Callable[..., Bench], micro_tokens: int, mode: Mode, constant: float | None, wanted: float
) -> None:
    """O01: losses [2, 4] and six times 1, in any split; a masked row of NaN is nothing (O02)."""
    bench = make(micro_tokens=micro_tokens)
    lengths = torch.tensor([3, 7, 4])
    nan = float("nan")
    losses = torch.tensor([0.0, 2, 4, 0, 1, 1, 1, 1, 1, 1, 0, nan, float("inf"), 7])
    owner = torch.repeat_interleave(lengths)
    position = torch.arange(14) - torch.tensor([0, 3, 10])[owner]
    trained = (position > 0) & (owner < 2)
    sequences = Sequences.of(
        {
            "id": torch.tensor([4, 5, 6]),
            "group": torch.tensor([0, 1, 2]),
            "length": lengths,
            "prompt_length": torch.ones(3, dtype=torch.int64),
            "trained": torch.tensor([2, 6, 0]),
        }
    )
    columns = {
        "token": torch.arange(3, 17),
        "position": position,
        "trained": trained,
        "reward": losses,
    }
    bench.store.put(Batch.of(sequences, columns))
    term = Term(name="paid", loss=Loss(function=paid), mode=mode, constant=constant)
    metrics = train(bench, sequences, Objective(terms=(term,)))
    assert_close(values(metrics)["loss/paid"], wanted, rtol=1e-6, atol=1e-6)
    assert all(bool(weight.isfinite().all()) for weight in bench.weights().values())


def test_a_step_without_a_trained_token_changes_nothing_and_is_counted(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    """O02, A4: weights, moments and step count stay; the run goes on."""
    bench = make()
    rows = rows_in(bench.store)
    train(bench, rows, PPO)
    before = bench.weights()
    run(bench.engine.save(tmp_path / "before"))

    async def silent() -> None:
        metrics = await bench.engine.accumulate(PPO.weigh(rows).select([3]), PPO)
        assert values(metrics).get("loss/ppo", 0.0) == 0.0
        result = await bench.engine.step()
        assert not result.applied
        assert values(result.metrics)["train/skipped_steps"] == 1
        await bench.engine.save(tmp_path / "after")

    run(silent())
    assert all(torch.equal(before[name], weight) for name, weight in bench.weights().items())
    saved = [file.name for file in (tmp_path / "before").glob("*.safetensors")]
    assert saved
    for name in saved:
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()
    train(bench, rows, PPO)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("objective", [PPO, GSPO], ids=["token", "sequence"])
def test_a_non_finite_loss_skips_the_step_and_names_the_sample(
    make: Callable[..., Bench], clip_norm: float, objective: Objective
) -> None:
    """O18, J1, J2, J4: weights as before, the sample named, the next step as if nothing was."""
    bench, twin = make(clip_norm=clip_norm), make(clip_norm=clip_norm)
    rows = rows_in(bench.store)
    train(twin, rows_in(twin.store), objective)
    before = bench.weights()
    spoilt = rows.with_columns(advantage=rows["advantage"].clone())
    spoilt["advantage"][4] = float("nan")

    async def once() -> None:
        await bench.engine.accumulate(objective.weigh(spoilt), objective)
        result = await bench.engine.step()
        assert not result.applied
        assert "104" in result.cause
        assert "102" not in result.cause
        assert values(result.metrics)["train/skipped_steps"] == 1

    run(once())
    assert all(torch.equal(before[name], weight) for name, weight in bench.weights().items())
    train(bench, rows, objective)
    for name, weight in twin.weights().items():
        assert torch.equal(bench.weights()[name], weight), name


def test_scores_are_those_of_the_weights_and_stand_at_their_tokens(
    make: Callable[..., Bench],
) -> None:
    """C1: `old` and `entropy` at the sampling temperature, 1e-5 of the plain way; 0 elsewhere."""
    bench = make()
    rows = rows_in(bench.store)
    order = torch.tensor([5, 0, 3])
    run(bench.engine.score(rows.select(order), ("old", "entropy")))
    found = bench.store.get(rows.ids[order], ("token", "action", "old", "entropy"))
    start = 0
    for length in rows.lengths[order].tolist():
        row = found[start : start + length]
        start += length
        logp = torch.log_softmax(bench.logits(row["token"])[:-1] / 0.8, -1)
        plain = logp.gather(1, row["token"][1:, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        action = row["action"][1:]
        assert_close(row["old"][1:], torch.where(action, plain, 0.0), rtol=0, atol=1e-5)
        assert_close(row["entropy"][1:], torch.where(action, entropy, 0.0), rtol=0, atol=1e-5)


def test_the_reference_is_the_model_before_training(make: Callable[..., Bench]) -> None:
    """Its scores equal the first `old`, and training moves only the policy."""
    bench = make()
    rows = rows_in(bench.store)
    run(bench.engine.score(rows, ("old",)))
    train(bench, rows, PPO)
    run(bench.engine.view("reference").score(rows, ("reference",)))
    run(bench.engine.score(rows, ("entropy",)))
    found = bench.store.get(rows.ids, ("old", "reference"))
    assert_close(found["reference"], found["old"], rtol=0, atol=1e-5)
    with pytest.raises(WrongBatch, match="old"):
        run(bench.engine.score(rows, ("old",)))
    later = rows_in(bench.store, first_id=200)
    run(bench.engine.score(later, ("old",)))
    moved = bench.store.get(later.ids, ("old",))["old"]
    assert (moved - found["old"]).abs().max() > 1e-4


def test_columns_and_views_that_nobody_makes_are_refused(make: Callable[..., Bench]) -> None:
    """The message names them; declared views work."""
    bench = make()
    rows = rows_in(bench.store)
    with pytest.raises(Unsupported, match="value"):
        run(bench.engine.score(rows, ("value",)))
    with pytest.raises(Unsupported, match="teacher"):
        bench.engine.view("teacher")
    assert bench.engine.capabilities.views == {"reference"}


def test_a_token_estimator_runs_over_all_rows_and_its_columns_are_used(
    make: Callable[..., Bench],
) -> None:
    """What `compute` wrote is what the loss reads, when the rows bring no advantage themselves."""
    bench, twin = make(), make()
    rows = rows_in(bench.store)
    bare = Sequences.of({n: rows[n] for n in rows.table.keys() if n != "advantage"})
    run(bench.engine.compute(bare, Estimator(function=spread, options={"scale": 0.5})))
    found = bench.store.get(rows.ids, ("advantage", "reward"))
    trained = torch.repeat_interleave(rows["trained"], rows.lengths)
    assert_close(found["advantage"], 0.5 * (found["reward"] + trained))
    train(bench, bare, PPO)
    train(twin, rows_in(twin.store), PPO)
    assert any((a - twin.weights()[n]).abs().max() > 1e-4 for n, a in bench.weights().items())


def test_a_save_restores_bit_for_bit(make: Callable[..., Bench], tmp_path: Path) -> None:
    """H1: for every k, k steps, save, another engine, load, the rest: equal to all straight."""

    def step(bench: Bench, number: int) -> float:
        rows = rows_in(bench.store, seed=number, first_id=1000 * number)
        metrics = train(bench, rows, PPO)
        run(bench.engine.publish())
        return values(metrics)["train/gradient_norm"]

    settings = {
        "schedule": Schedule.COSINE,
        "warmup_steps": 2,
        "epsilon": 1e-8,
        "learning_rate": 1e-2,
    }
    straight = make(**settings)
    norms = []
    for number in range(1, 5):
        run(straight.engine.save(tmp_path / str(number)))
        norms.append(step(straight, number))
    for first in (1, 2, 4):
        resumed = make(**settings)
        run(resumed.engine.load(tmp_path / str(first)))
        assert [step(resumed, number) for number in range(first, 5)] == norms[first - 1 :]
        for name, weight in straight.weights().items():
            assert torch.equal(resumed.weights()[name], weight), name
        assert run(resumed.engine.publish()) == 5


def test_a_save_shares_no_storage_with_the_weights(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    """H5: training after a save or a load changes no file and no other engine."""
    bench = make()
    rows = rows_in(bench.store)
    run(bench.engine.save(tmp_path))
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    run(bench.engine.load(tmp_path))
    train(bench, rows, PPO)
    assert files == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_an_incomplete_save_is_refused(make: Callable[..., Bench], tmp_path: Path) -> None:
    """H4: a missing or cut-off piece is named; the engine stays as it was."""
    bench = make()
    train(bench, rows_in(bench.store), PPO)
    run(bench.engine.save(tmp_path))
    before = bench.weights()
    for file in list(tmp_path.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError, match=file.name):
            run(bench.engine.load(tmp_path))
        file.unlink()
        with pytest.raises(CheckpointError, match=file.name):
            run(bench.engine.load(tmp_path))
        file.write_bytes(whole)
    assert all(torch.equal(before[name], weight) for name, weight in bench.weights().items())
    run(bench.engine.load(tmp_path))


def test_versions_count_publications(make: Callable[..., Bench]) -> None:
    """A version is a publication, not a step."""
    bench = make()
    train(bench, rows_in(bench.store), PPO)
    assert [run(bench.engine.publish()), run(bench.engine.publish())] == [1, 2]


def test_an_exported_folder_gives_the_trained_logits(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    """H7, with the tokenizer beside it."""
    from transformers import AutoModelForCausalLM

    bench = make()
    train(bench, rows_in(bench.store), PPO)
    run(bench.engine.export(tmp_path))
    ids = torch.tensor([4, 9, 17, 30])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert_close(loaded(ids[None]).logits[0], bench.logits(ids), rtol=0, atol=1e-4)
    assert (tmp_path / "letters").exists()


def test_a_failure_inside_carries_its_cause_and_stays(make: Callable[..., Bench]) -> None:
    """EngineFailed with the engine's own first error; later calls say so too."""
    bench = make()
    rows = rows_in(bench.store)
    objective = Objective(terms=(Term(name="broken", loss=Loss(function=broken)),))
    for attempt in range(2):
        with pytest.raises(EngineFailed) as caught:
            run(bench.engine.accumulate(objective.weigh(rows), objective))
        assert "broken loss" in str(caught.value.__cause__), attempt


def test_a_cancelled_part_leaves_no_gradient(make: Callable[..., Bench]) -> None:
    """Cancellation is safe between micro-batches; what was accumulated is void."""
    bench, twin = make(micro_tokens=1), make(micro_tokens=1)
    rows = rows_in(bench.store)
    train(twin, rows_in(twin.store), PPO)

    async def cancelled() -> None:
        task = asyncio.create_task(bench.engine.accumulate(PPO.weigh(rows), PPO))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await bench.engine.step()).applied

    run(cancelled())
    train(bench, rows, PPO)
    for name, weight in twin.weights().items():
        assert torch.equal(bench.weights()[name], weight), name


def test_the_event_loop_is_free_while_the_engine_works(make: Callable[..., Bench]) -> None:
    """Torch runs in a thread of its own."""
    bench = make(micro_tokens=1)
    rows = rows_in(bench.store)

    async def ticks() -> int:
        count = 0
        task = asyncio.create_task(bench.engine.accumulate(PPO.weigh(rows), PPO))
        while not task.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert run(ticks()) > 10


def test_closing_twice_is_safe_and_a_closed_engine_says_so(make: Callable[..., Bench]) -> None:
    """After close every call is refused."""
    bench = make()
    rows = rows_in(bench.store)
    run(bench.engine.close())
    run(bench.engine.close())
    with pytest.raises(EngineFailed, match="closed"):
        run(bench.engine.score(rows, ("old",)))


def test_what_was_offloaded_comes_back_bit_for_bit(
    make: Callable[..., Bench], tmp_path: Path
) -> None:
    """I3, I4: a running engine goes away and comes back, saving works between, and the next step
    is that of an engine that stayed; where it cannot, it says so."""
    bench, twin = make(), make()
    rows, same = rows_in(bench.store), rows_in(twin.store)
    for one, own in ((bench, rows), (twin, same)):
        train(one, own, PPO)
    if not bench.engine.capabilities.offload:
        with pytest.raises(Unsupported, match="offload"):
            run(bench.engine.offload())
        run(bench.engine.onload())
    else:
        for _ in range(2):
            run(bench.engine.offload())
        run(bench.engine.save(tmp_path / "away"))
        run(bench.engine.saved())
        for _ in range(2):
            run(bench.engine.onload())
        run(twin.engine.load(tmp_path / "away"))
    for one, own in ((bench, rows), (twin, same)):
        train(one, own, PPO)
    for name, weight in twin.weights().items():
        assert torch.equal(bench.weights()[name], weight), name


def test_training_goes_on_while_a_save_is_written(tmp_path: Path) -> None:
    """H3, H5: what is written is the state that was taken; until the last byte is there the folder
    is no save. The disk is slow until the test says otherwise."""
    bench, twin = ranked(save_aside=True), ranked()
    rows, same = rows_in(bench.store), rows_in(twin.store)
    train(bench, rows, PPO)
    train(twin, same, PPO)
    run(twin.engine.save(tmp_path / "at once"))
    folder = tmp_path / "aside"
    folder.mkdir()
    (folder / "slow").touch()
    run(bench.engine.save(folder))
    train(bench, rows, PPO)
    moved = bench.weights()
    with pytest.raises(CheckpointError, match=r"engine\.json"):
        run(twin.engine.load(folder))
    (folder / "slow").unlink()
    run(bench.engine.saved())
    files = sorted(file.name for file in (tmp_path / "at once").iterdir())
    assert len(files) == 5
    for name in files:
        assert (folder / name).read_bytes() == (tmp_path / "at once" / name).read_bytes(), name
    assert any(not torch.equal(moved[name], weight) for name, weight in twin.weights().items())
    run(bench.engine.save(tmp_path / "later"))
    run(bench.engine.load(tmp_path / "later"))  # it waits for what is being written
    assert all(torch.equal(moved[name], weight) for name, weight in bench.weights().items())


def test_a_save_aside_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """H3: by `saved`, or at the next save; the engine lives."""
    bench = ranked(save_aside=True)
    train(bench, rows_in(bench.store), PPO)
    (tmp_path / "file").write_text("")
    run(bench.engine.save(tmp_path / "file" / "below"))
    with pytest.raises((EngineFailed, CheckpointError), match="file"):
        run(bench.engine.saved())
