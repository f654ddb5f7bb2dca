"""The contract of the Platform port: parametrise a test over `CONTRACT`.

@pytest.mark.parametrize("check", CONTRACT)
def test_platform(check: Check) -> None:
    check(my_platform())

What it promises before torch may load is checked on the module that holds its `Config` and
`build`: `building_it_loads_no_torch("my_package.platform")`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import torch

from hexpo.application.ports.platform import Platform
from hexpo.domain.errors import Unsupported
from hexpo.entrypoints.testing.expecting import expect, refusal

Check = Callable[[Platform], None]
"""Raises AssertionError where a platform breaks the contract, on a machine that has its hardware
and on one that lacks it."""

COLLECTIVES = frozenset({"gloo", "nccl", "rccl", "hccl"})


def its_device_is_one_that_torch_knows(platform: Platform) -> None:
    """Known without the hardware."""
    try:
        torch.device(platform.device)
    except RuntimeError as error:
        raise AssertionError(f"torch knows no device {platform.device!r}") from error
    expect(platform.collective in COLLECTIVES, f"{platform.collective!r} is no collective")


def its_environment_is_a_pure_answer(platform: Platform) -> None:
    """Asked twice it is the same, and asking sets nothing."""
    before = dict(os.environ)
    expect(platform.environment() == platform.environment(), "two answers differ")
    expect(os.environ == before, "asking set a variable")
    for name, value in platform.environment().items():
        expect(name.isidentifier(), f"{name!r} is no variable's name")
        expect(value, f"{name} is empty")


def its_health_says_what_was_found_or_why_not(platform: Platform) -> None:
    """A reason in both cases."""
    health = platform.health()
    expect(health.reason, "no reason is given")
    agree = health.available == bool(health.facts)
    expect(agree, f"available is {health.available}, with the facts {health.facts}")


def it_is_prepared_or_says_why_not(platform: Platform) -> None:
    """What health calls missing is refused with the same reason."""
    health = platform.health()
    if health.available:
        platform.prepare()
        expect(platform.peak_memory() > 0, "a prepared platform has used no memory")
    else:
        with refusal(Unsupported) as caught:
            platform.prepare()
        expect(health.reason in str(caught.error), "the refusal gives another reason than health")
    platform.release()


def building_it_loads_no_torch(module: str) -> None:
    """The launcher asks for the environment before torch may load."""
    code = (
        f"import sys, {module} as p\n"
        "p.build(p.Config()).environment(); sys.exit(3 * ('torch' in sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    expect(ended.returncode != 3, f"{module} loads torch")
    expect(ended.returncode == 0, f"{module} cannot be built: {ended.stderr.decode()}")


CONTRACT: tuple[Check, ...] = (
    its_device_is_one_that_torch_knows,
    its_environment_is_a_pure_answer,
    its_health_says_what_was_found_or_why_not,
    it_is_prepared_or_says_why_not,
)
"""Every check of a platform that is built."""
