"""Saves, versions and exported folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.contract.training.bench import PPO, Bench, ranked, rows_in, run, train
from torch.testing import assert_close

from hexpo.adapters.training.fsdp import Schedule
from hexpo.domain.errors import CheckpointError, EngineFailed
from hexpo.domain.metrics import values


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
