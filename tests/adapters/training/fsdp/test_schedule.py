"""The learning rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.adapters.training.fsdp import Config, Schedule
from hexpo.adapters.training.fsdp.schedule import learning_rate


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Schedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Schedule.LINEAR, [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]),
        (Schedule.COSINE, [0.5, 1.0, 1.0, 0.882843, 0.6, 0.317157, 0.2]),
    ],
)
def test_a_rate_rises_then_falls_to_its_share_at_the_last_step(
    schedule: Schedule, wanted: list[float]
) -> None:
    """Two steps of warm-up, seven in all, a fifth left; later steps keep it."""
    config = Config(learning_rate=1.0, schedule=schedule, warmup_steps=2, min_ratio=0.2)
    rates = [learning_rate(config, applied=step, total_steps=7) for step in range(7)]
    assert rates == pytest.approx(wanted, abs=1e-6)
    assert learning_rate(config, applied=99, total_steps=7) == pytest.approx(wanted[-1])


@given(
    schedule=st.sampled_from(list(Schedule)),
    warmup=st.integers(0, 20),
    total=st.integers(1, 30),
    least=st.floats(0, 1),
    applied=st.integers(0, 60),
)
def test_a_rate_is_never_above_the_full_one_nor_below_its_share(
    schedule: Schedule, warmup: int, total: int, least: float, applied: int
) -> None:
    """For runs shorter than their warm-up too."""
    config = Config(learning_rate=3.0, schedule=schedule, warmup_steps=warmup, min_ratio=least)
    rate = learning_rate(config, applied=applied, total_steps=total)
    assert 0 <= rate <= 3.0
    assert applied < warmup or rate >= 3.0 * least - 1e-9
