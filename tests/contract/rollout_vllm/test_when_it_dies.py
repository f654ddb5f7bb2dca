"""An engine that ends by itself; the folder's last file, as it ends the shared one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.contract.rollout_vllm.bench import (
    MARKS,
    OverThere,
    ask,
    make_model,
    needs_vllm,
    stand_in,
)

from hexpo.domain.errors import EngineFailed

pytestmark = MARKS


def test_an_engine_that_dies_tells_whoever_waits(tmp_path: Path) -> None:
    """F5: the error's own words and cause; afterwards everything is refused."""
    engine = stand_in(make_model(tmp_path))
    llm: Any = engine._llm

    async def work() -> None:
        waiting = [asyncio.create_task(engine.generate(ask(str(i)))) for i in range(8)]
        await asyncio.sleep(0.002)
        llm.broken = RuntimeError("broken")
        await asyncio.wait(waiting)
        for task in waiting:
            error = task.exception()
            assert isinstance(error, EngineFailed)
            assert "broken" in str(error)
            assert isinstance(error.__cause__, RuntimeError)
        with pytest.raises(EngineFailed, match="died before"):
            await engine.generate(ask("after"))
        await engine.close()

    asyncio.run(work())


@needs_vllm
@pytest.mark.slow
def test_a_killed_engine_process_reaches_whoever_waits(real: OverThere) -> None:
    """F5, O3: the last test of this engine."""
    engine = real.engine

    async def there() -> None:
        waiting = asyncio.create_task(
            engine.generate(ask("w", max_new_tokens=240, min_new_tokens=240))
        )
        await asyncio.sleep(0.2)
        for process in engine._llm.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed, match="EngineDeadError"):
            await waiting
        with pytest.raises(EngineFailed, match="died before"):
            await engine.generate(ask("after"))

    asyncio.run(real.there(real.fresh()))
    asyncio.run(asyncio.wait_for(real.there(there()), 60))
