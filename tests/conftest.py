"""Settings of every test: few threads, no network."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# Time is bounded by pytest's own limit; a busy machine must not make a property fail.
settings.register_profile("hexpo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hexpo")

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
