"""Masters apart from any engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.masters import Masters


def test_a_restored_optimizer_lies_where_its_weights_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a save is read into host memory, and the weights may be on an accelerator."""
    adamw = torch.optim.AdamW

    def plain(*args: Any, fused: bool, **settings: Any) -> torch.optim.AdamW:
        return adamw(*args, **settings)  # a device without memory has no fused kernel

    monkeypatch.setattr(torch.optim, "AdamW", plain)
    weight = torch.nn.Parameter(torch.zeros(2, 3, device="meta"))
    masters = Masters({"w": weight}, Config())
    moments = {
        "step.w": torch.tensor(3.0),
        "exp_avg.w": torch.ones(2, 3),
        "exp_avg_sq.w": torch.ones(2, 3),
    }
    masters.restore({"w": torch.ones(2, 3)}, moments)
    assert {
        name: tensor.device.type for name, tensor in masters.moments().items()
    } == dict.fromkeys(moments, "meta")
