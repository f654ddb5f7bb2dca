"""What every platform promises."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hexpo.adapters.platform import cpu, cuda
from hexpo.application.ports.platform import Platform
from hexpo.domain.errors import Unsupported

PLATFORMS: dict[str, Platform] = {
    "cpu": cpu.build(cpu.Config(threads=1)),
    "cuda": cuda.build(cuda.Config()),
}


@pytest.fixture(params=PLATFORMS, ids=str)
def platform(request: pytest.FixtureRequest) -> Platform:
    return PLATFORMS[request.param]


def test_its_device_is_one_that_torch_knows(platform: Platform) -> None:
    """P1: known without the hardware."""
    assert torch.device(platform.device).type in PLATFORMS
    assert platform.collective in {"gloo", "nccl", "rccl", "hccl"}


def test_its_environment_is_a_pure_answer(platform: Platform) -> None:
    """Asked twice it is the same, and asking sets nothing."""
    before = dict(os.environ)
    assert platform.environment() == platform.environment()
    assert os.environ == before
    for name, value in platform.environment().items():
        assert name.isidentifier()
        assert value


def test_its_health_says_what_was_found_or_why_not(platform: Platform) -> None:
    """O25: a reason in both cases."""
    health = platform.health()
    assert health.reason
    assert health.available == bool(health.facts)


def test_it_is_prepared_or_says_why_not(platform: Platform) -> None:
    """M3: what health calls missing is refused with the same reason."""
    health = platform.health()
    if health.available:
        platform.prepare()
        assert platform.peak_memory() > 0
    else:
        with pytest.raises(Unsupported) as caught:
            platform.prepare()
        assert health.reason in str(caught.value)
    platform.release()


@pytest.mark.parametrize("name", PLATFORMS)
def test_building_it_loads_no_torch(name: str) -> None:
    """The launcher asks for the environment before torch may load."""
    code = (
        f"import sys; from hexpo.adapters.platform import {name} as p\n"
        "p.build(p.Config()).environment(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
