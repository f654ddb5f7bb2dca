"""How many schedules the explorer plays: `pytest tests/simulation --schedules 100000`."""

from __future__ import annotations

import pytest

SCHEDULES = 10_000
"""Seeds; a quarter of them have several replicas."""
PART = 250
"""Seeds of one test, so that each stays under its time limit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--schedules",
        type=int,
        default=SCHEDULES,
        help=f"seeds of schedules and faults that the explorer plays; {SCHEDULES} by default",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cuts the schedules into parts."""
    if "part" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--schedules", default=SCHEDULES)
        parts = [range(first, min(first + PART, wanted)) for first in range(0, wanted, PART)]
        metafunc.parametrize("part", parts, ids=[f"{part.start}-{part.stop}" for part in parts])
