"""A step: no split changes it, and one that is not sound changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.contract.training.bench import (
    GSPO,
    PPO,
    Bench,
    close_weights,
    fsdp,
    paid,
    rows_in,
    run,
    train,
)
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.domain.aggregate import Mode
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Term


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
