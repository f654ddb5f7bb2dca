"""What the engine does beyond its port: skips, clips, adapters, precision, packing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from tests.adapters.training.fsdp.made import engine_of
from torch import Tensor
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import FsdpEngine, Lora
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import CheckpointError, NonFinite, Unsupported, WrongBatch
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import Metrics, values
from hexpo.domain.objective import Loss, Objective, Term

PPO = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo)),))
_SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def policy(family: str = "llama", precision: Precision = Precision.FP32, **more: Any) -> Policy:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **_SHAPE, **more))
    for parameter in module.parameters():
        parameter.data = parameter.data.to(precision.dtype)
    return Policy(module, precision=precision)


def rows_in(store: MemoryRowStore, *, first_id: int = 0, first_token: bool = False) -> Sequences:
    draw = torch.Generator().manual_seed(first_id)
    tokens = torch.randint(3, 61, (4 * 9,), generator=draw)
    position = torch.arange(9).repeat(4)
    action = position >= (0 if first_token else 4)
    sequences = Sequences.of(
        {
            "id": torch.arange(first_id, first_id + 4),
            "group": torch.arange(4),
            "length": torch.full((4,), 9),
            "prompt_length": torch.full((4,), 4),
            "trained": torch.full((4,), 5),
            "advantage": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        }
    )
    columns = {"token": tokens, "position": position, "action": action, "trained": action}
    store.put(Batch.of(sequences, columns))
    return PPO.weigh(sequences)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def _train(engine: FsdpEngine, rows: Sequences) -> Metrics:
    found = await engine.accumulate(rows, PPO)
    return {**found, **(await engine.step()).metrics}


def train(engine: FsdpEngine, rows: Sequences) -> dict[str, float]:
    return values(run(_train(engine, rows)))


def copies(model: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


def test_so_many_non_finite_steps_in_a_row_stop_the_run(tmp_path: Path) -> None:
    """O18, J2, J3: the third raises, the weights are those of the last applied step and can be
    saved; an applied step in between resets the count."""
    model = policy()
    engine, store = engine_of(model, max_skipped_steps=3)
    rows = rows_in(store)
    bad = rows.with_columns(advantage=torch.tensor([1.0, float("nan"), 0.5, -0.5]))
    for part in (bad, bad, rows, bad, bad):
        train(engine, part)
    before = copies(model)
    with pytest.raises(NonFinite, match="samples 1;"):
        train(engine, bad)
    assert all(torch.equal(before[name], p) for name, p in copies(model).items())
    run(engine.save(tmp_path))


def test_non_finite_weights_are_not_saved(tmp_path: Path) -> None:
    """J3: a finite save is never displaced."""
    model = policy()
    engine, _ = engine_of(model)
    with torch.no_grad():
        model.module.get_parameter("model.norm.weight")[0] = float("inf")
    with pytest.raises(NonFinite, match=r"model\.norm\.weight"):
        run(engine.save(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_gradient_that_overflows_is_blamed_on_its_weight() -> None:
    """J2: a finite loss with an infinite gradient: the first bad tensor is named."""
    model = policy()
    engine, store = engine_of(model)
    rows = rows_in(store)

    async def spoil() -> str:
        await engine.accumulate(rows, PPO)
        gradient = model.module.get_parameter("model.layers.1.mlp.up_proj.weight").grad
        assert gradient is not None
        gradient[0, 0] = float("inf")
        return (await engine.step()).cause

    before = copies(model)
    assert "model.layers.1.mlp.up_proj.weight" in run(spoil())
    assert all(torch.equal(before[name], p) for name, p in copies(model).items())


@pytest.mark.parametrize(("clip", "scale"), [(0.0, 1.0), (1e6, 1.0), (0.5, 0.5)])
def test_gradients_are_scaled_to_the_clipping_norm(clip: float, scale: float) -> None:
    """Steps of AdamW with a huge epsilon show the gradient's size; the reported norm is the one
    before clipping."""
    free, clipped = policy(), policy()
    moves, norms = [], []
    for model, limit in ((free, 0.0), (clipped, clip)):
        before = copies(model)
        settings = {"epsilon": 1e6, "learning_rate": 1e6, "clip_norm": limit}
        engine, store = engine_of(model, **settings)
        metrics = train(engine, rows_in(store))
        norms.append(metrics["train/gradient_norm"])
        moves.append(sum(float((p - before[n]).square().sum()) for n, p in copies(model).items()))
    assert norms[0] == norms[1]
    factor = 1.0 if scale == 1.0 else clip / norms[0]
    assert factor <= 1.0
    assert (moves[1] / moves[0]) ** 0.5 == pytest.approx(factor, rel=1e-3)


def test_adapters_alone_are_trained(tmp_path: Path) -> None:
    """H7, H1: the base keeps its bits; a save holds adapters only and fits that base only."""
    model = policy()
    before = copies(model)
    engine, store = engine_of(model, lora=Lora(rank=2))
    train(engine, rows_in(store))
    after = copies(model)
    for name, weight in before.items():
        inner = name.replace("_proj.weight", "_proj.base_layer.weight")
        assert torch.equal(after[inner if inner in after else name], weight), name
    assert any(".lora_B." in name and bool(weight.any()) for name, weight in after.items())
    run(engine.save(tmp_path))
    assert (tmp_path / "weights.safetensors").stat().st_size < 60_000
    other = policy()
    with torch.no_grad():
        other.module.get_parameter("model.norm.weight").mul_(2)
    with pytest.raises(CheckpointError, match="base"):
        run(engine_of(other, lora=Lora(rank=2))[0].load(tmp_path))


def test_a_save_of_another_model_is_refused(tmp_path: Path) -> None:
    """The message names a weight."""
    run(engine_of(policy())[0].save(tmp_path))
    smaller = policy("qwen2")
    with pytest.raises(CheckpointError, match="differ in name or shape"):
        run(engine_of(smaller)[0].load(tmp_path))


def test_bfloat16_weights_follow_single_precision_masters(tmp_path: Path) -> None:
    """Steps far below a bfloat16's spacing add up, and a resumed run has the same bits (H1)."""
    model = policy(precision=Precision.BF16)
    settings = {"learning_rate": 1e-5}
    engine, store = engine_of(model, **settings)
    before = copies(model)
    for step in range(3):
        train(engine, rows_in(store, first_id=10 * step))
    unchanged = sum(int((p == before[n]).sum()) for n, p in copies(model).items())
    total = sum(weight.numel() for weight in before.values())
    assert unchanged > 0.5 * total
    run(engine.save(tmp_path))
    resumed_model = policy(precision=Precision.BF16)
    resumed, other = engine_of(resumed_model, **settings)
    run(resumed.load(tmp_path))
    for step in range(3, 40):
        rows = rows_in(store, first_id=10 * step)
        rows_in(other, first_id=10 * step)
        assert train(engine, rows) == train(resumed, rows)
    assert all(torch.equal(p, copies(resumed_model)[n]) for n, p in copies(model).items())
    moved = sum(int((p != before[n]).sum()) for n, p in copies(model).items())
    assert moved > total - unchanged


def test_bfloat16_gradients_are_close_to_single_precision() -> None:
    """C1 in bf16: the direction of a step agrees, cosine above 0.99."""
    updates = []
    for precision in (Precision.FP32, Precision.BF16):
        model = policy(precision=precision)
        engine, store = engine_of(model, clip_norm=0.0)
        run(engine.accumulate(rows_in(store), PPO))
        gradients = [master.grad for master in engine._rank.masters._masters]
        updates.append(torch.cat([g.flatten() for g in gradients if g is not None]))
    assert float(torch.cosine_similarity(updates[0], updates[1], dim=0)) > 0.99


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe", "gemma"])
def test_other_families_train_packed_or_padded_alike(family: str) -> None:
    """A1: the generic ways; an untested family falls back to padding."""
    more = {"qwen3_moe": {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}}
    changed = []
    for packing in (Packing.AUTO, Packing.PADDED):
        model = policy(family, **more.get(family, {}))
        engine, store = engine_of(model, packing=packing, epsilon=1.0, learning_rate=0.5)
        assert engine.capabilities.packing == (packing is Packing.AUTO and family != "gemma")
        train(engine, rows_in(store))
        changed.append(copies(model))
    for name, weight in changed[0].items():
        assert_close(weight, changed[1][name], rtol=0, atol=1e-6)


def test_a_trained_first_token_is_refused() -> None:
    """Nothing predicts it: training it would read another row's hidden state."""
    engine, store = engine_of(policy())
    with pytest.raises(WrongBatch, match="first token"):
        train(engine, rows_in(store, first_token=True))


def test_a_reference_that_is_not_kept_is_refused() -> None:
    """A full copy costs memory: it is kept only where asked for."""
    engine, _ = engine_of(policy())
    assert engine.capabilities.views == frozenset()
    with pytest.raises(Unsupported, match="reference"):
        engine.view("reference")


def test_a_save_inside_a_step_is_refused(tmp_path: Path) -> None:
    """Accumulated gradients are no part of a save."""
    engine, store = engine_of(policy())
    run(engine.accumulate(rows_in(store), PPO))
    with pytest.raises(WrongBatch, match="step"):
        run(engine.save(tmp_path))


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    SafetensorError("I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=["disk", "quota", "safetensors"])
@pytest.mark.parametrize("what", ["save", "export"])
def test_a_full_disk_is_told_as_such_and_the_engine_lives(
    error: Exception, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: the typed error of a save, whichever library wrote; the run may save again."""
    engine, store = engine_of(policy())

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", fail)
        with pytest.raises(CheckpointError, match=r"disk of .* is full.*Free space") as caught:
            run(getattr(engine, what)(tmp_path / what))
    assert caught.value.__cause__ is error
    train(engine, rows_in(store))
    run(engine.save(tmp_path / "again"))
    assert list((tmp_path / "again").glob("*.safetensors"))
