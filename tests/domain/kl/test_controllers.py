"""Coefficients that move from step to step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import WrongValue
from hexpo.domain.kl import AdaptiveEntropy, AdaptiveKL, FixedKL

DATA = json.loads((Path(__file__).parents[2] / "data" / "golden-vectors.json").read_text())


def test_the_adaptive_coefficient_equals_the_oracle() -> None:
    """Steps are counted in sequences trained."""
    expected = DATA["adaptive_kl(init .2,target 6,horizon 1e4,n=256; kl 12,3,6.5)"]
    controller = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1e4)
    for kl, coefficient in zip((12.0, 3.0, 6.5), expected, strict=True):
        controller = controller.after(kl=kl, sequences=256)
        assert controller.coefficient == pytest.approx(coefficient, rel=1e-8)


@given(kl=st.floats(-1e3, 1e3), sequences=st.integers(0, 100_000), coefficient=st.floats(0.0, 10.0))
def test_a_coefficient_never_turns_negative(kl: float, sequences: int, coefficient: float) -> None:
    """Also for a batch larger than the horizon."""
    controller = AdaptiveKL(coefficient=coefficient, target=0.1, horizon=1_000.0)
    assert controller.after(kl=kl, sequences=sequences).coefficient >= 0


def test_a_step_without_anything_trained_changes_nothing() -> None:
    """A4."""
    adaptive = AdaptiveKL(coefficient=0.2, target=6.0)
    assert adaptive.after(kl=None, sequences=0) == adaptive
    entropy = AdaptiveEntropy(target=0.3)
    assert entropy.after(entropy=None) == entropy
    fixed = FixedKL(coefficient=0.1)
    assert fixed.after(kl=5.0, sequences=10) == fixed


def test_the_entropy_coefficient_steps_towards_its_target_within_bounds() -> None:
    """Up where the entropy is under the target, else down."""
    controller = AdaptiveEntropy(target=0.3, step=0.25, highest=0.4)
    seen = []
    for entropy in (0.1, 0.2, 0.3, 0.9, 0.9):
        controller = controller.after(entropy=entropy)
        seen.append(controller.coefficient)
    assert seen == pytest.approx([0.25, 0.4, 0.15, 0.0, 0.0])


def test_meaningless_settings_are_refused() -> None:
    """M4."""
    with pytest.raises(WrongValue, match="target"):
        AdaptiveKL(coefficient=0.1, target=0.0)
    with pytest.raises(WrongValue, match="coefficient"):
        AdaptiveKL(coefficient=-0.1, target=1.0)
    with pytest.raises(WrongValue, match="horizon"):
        AdaptiveKL(coefficient=0.1, target=1.0, horizon=0.0)
    with pytest.raises(WrongValue, match="highest"):
        AdaptiveEntropy(target=0.1, lowest=1.0, highest=0.5)
