"""What the term that compares trainer and engine measures."""

from __future__ import annotations

import math

import pytest
import torch

from hexpo.domain.agreement import agreement, agreement_measures


def test_gap_and_ratio_are_those_of_the_two_log_probs() -> None:
    """C1, C9: the ratio stays finite: its exponent is held within 20 on both sides."""
    columns = {
        "policy_T": torch.tensor([-1.0, -1.0, -50.0, -1.0]),
        "behaviour_T": torch.tensor([-1.5, -1.0, -1.0, -50.0]),
    }
    found = agreement_measures(**columns)
    assert found["gap"].tolist() == [0.5, 0.0, 49.0, 49.0]
    want = [math.exp(0.5), 1.0, math.exp(-20), math.exp(20)]
    assert found["ratio"].tolist() == pytest.approx(want, rel=1e-5, abs=0)
    assert agreement(**columns).tolist() == [0.0] * 4
