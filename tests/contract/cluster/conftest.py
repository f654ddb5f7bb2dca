"""Runs a promise on each cluster."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.cluster.bench import ADAPTERS, CPUS, Holds, Promise

ENTRIES = Path(__file__).parents[2] / "data" / "cluster"


@pytest.fixture(scope="package", autouse=True)
def path() -> Iterator[None]:
    """Where this process and those that it starts find the entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ENTRIES))
        patch.syspath_prepend(str(ENTRIES))
        yield


@pytest.fixture(scope="package")
def ray_here(path: None) -> Iterator[None]:
    """One Ray for all tests of this folder: its start takes seconds."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about Ray's own next versions
        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _temp_dir=folder,
        )
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=list(ADAPTERS))
def holds(request: pytest.FixtureRequest, tmp_path: Path) -> Holds:
    """Runs a promise on an adapter, in real or in virtual time."""
    run, opened = ADAPTERS[request.param]
    if request.param == "ray":
        request.getfixturevalue("ray_here")

    def check(promise: Promise) -> None:
        async def main() -> None:
            async with opened(tmp_path) as bench:
                await promise(bench)

        run(main())

    return check
