"""What every platform promises."""

from __future__ import annotations

import pytest
import torch

from hexpo.adapters.platform import cpu, cuda
from hexpo.application.ports.platform import Platform
from hexpo.entrypoints.testing.platform import CONTRACT, Check, building_it_loads_no_torch

PLATFORMS: dict[str, Platform] = {
    "cpu": cpu.build(cpu.Config(threads=1)),
    "cuda": cuda.build(cuda.Config()),
}


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platform_keeps_its_contract(check: Check, name: str) -> None:
    """P1, M3, O25: with and without its hardware."""
    check(PLATFORMS[name])


@pytest.mark.parametrize("name", PLATFORMS)
def test_its_device_is_of_the_kind_that_names_it(name: str) -> None:
    """`device` is what torch calls the hardware."""
    assert torch.device(PLATFORMS[name].device).type in PLATFORMS


@pytest.mark.parametrize("name", PLATFORMS)
def test_building_it_loads_no_torch(name: str) -> None:
    """The launcher asks for the environment before torch may load."""
    building_it_loads_no_torch(f"hexpo.adapters.platform.{name}")
