"""Makes engines; those over ranks share two processes, started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.contract.training.bench import ENGINES, SHARED, Bench, run


@pytest.fixture(scope="package", autouse=True)
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
