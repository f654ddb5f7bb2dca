"""Failures, cancellation, the event loop, closing, and going away from the device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.contract.training.bench import PPO, Bench, broken, rows_in, run, train

from hexpo.domain.errors import EngineFailed, Unsupported
from hexpo.domain.objective import Loss, Objective, Term


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
