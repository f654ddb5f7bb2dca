"""vLLM keeps the contract of rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.contract.borrowed import borrowed
from tests.contract.rollout_vllm.bench import (
    MARKS,
    SUITE,
    OverThere,
    ask,
    bench_of,
    make_model,
    needs_vllm,
    stand_in,
)

from hexpo.application.ports.rollout import Request

pytestmark = MARKS

EXCEPT = (
    "tells_every_waiter",  # below: what breaks is another process
    "lower_priority",  # below: vLLM starts what comes first while it has room
)


def _is_mixed(given: Mapping[str, Any]) -> bool:
    """Refused: vLLM's order of these two filters is another one."""
    return {"min_p", "top_p"} <= given.get("filters", {}).keys()


CASES = list(
    borrowed(SUITE, without=lambda name: any(part in name for part in EXCEPT), refused=_is_mixed)
)


@pytest.mark.parametrize(("test", "given"), CASES)
def test_the_adapter_keeps_the_contract(
    test: Callable[..., None], given: dict[str, Any], tmp_path: Path
) -> None:
    """Ids, log-probs, spans, streams, cancellation, pauses and updates are the adapter's own."""

    def open_bench() -> Any:
        model = make_model(tmp_path)
        return SUITE.Bench(
            engine=stand_in(model),
            logits=model.logits,
            train=model.train,
            break_it=lambda: None,
            exactness=1e-5,
        )

    test(open_bench=open_bench, **given)


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize(("test", "given"), CASES)
def test_vllm_keeps_the_contract(
    test: Callable[..., None], given: dict[str, Any], real: OverThere
) -> None:
    """The whole suite on one real engine."""
    test(open_bench=lambda: bench_of(real), **given)


def test_lower_priority_numbers_leave_the_engine_s_queue_first(tmp_path: Path) -> None:
    """Behind requests that fill the engine, priority decides."""
    engine = stand_in(make_model(tmp_path))

    async def work() -> list[str]:
        return await order_of_ends(engine)

    assert_urgent_first(asyncio.run(work()))


async def order_of_ends(engine: Any) -> list[str]:
    """Long requests fill the engine; then come patient ones, then urgent ones."""
    order: list[str] = []

    async def one(wanted: Request) -> None:
        await engine.generate(wanted)
        order.append(wanted.id)

    async with asyncio.TaskGroup() as group:
        for name, priority, length in (("full", 0, 60), ("patient", 5, 12), ("urgent", 1, 12)):
            for number in range(SUITE.SLOTS):
                wanted = ask(
                    f"{name} {number}",
                    seed=number,
                    priority=priority,
                    max_new_tokens=length,
                    min_new_tokens=length,
                )
                group.create_task(one(wanted))
    return order


def assert_urgent_first(order: list[str]) -> None:
    late = [name for name in order if not name.startswith("full")]
    assert {name.split()[0] for name in late[: SUITE.SLOTS]} == {"urgent"}


@needs_vllm
@pytest.mark.slow
def test_vllm_serves_urgent_requests_first(real: OverThere) -> None:
    """Waiting requests leave vLLM's queue by priority."""
    assert_urgent_first(SUITE.run(bench_of(real), order_of_ends))
