"""Forecasts: the real loop in virtual time, against what can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.lengths import Lengths, LogNormal, Measured
from hexpo.application.continuing import OnUpdate
from hexpo.domain.errors import DataError, WrongValue
from hexpo.domain.schedule import Order
from hexpo.infrastructure.forecast import (
    Choice,
    Costs,
    Machine,
    Workload,
    fastest,
    forecast,
    speeds_of,
    sweep,
)
from hexpo.infrastructure.forecast.fitting import fit

EQUAL = Workload(
    groups=4, samples=2, lengths=Lengths(quantile=Measured(lengths=(50.0,)), longest=64)
)
"""Eight answers of 50 tokens a step."""

COSTS = Costs(
    replicas=2,
    rollout=RolloutSpeed(token_seconds=0.1, request_seconds=0.05, slots=8),
    training=TrainingCost(token_seconds=0.01, score_seconds=0.005, publish_seconds=1.0),
    load_seconds=2.0,
)
GENERATION = 50 * (0.1 + 4 * 0.05)
TRAINING = 400 * 0.01 + 1.0


def test_a_step_of_equal_answers_takes_what_its_parts_take() -> None:
    """On-policy: generation, training and update follow each other."""
    seen = forecast(EQUAL, COSTS, Choice(), steps=3, warmup=1)
    assert seen.step_seconds == pytest.approx(GENERATION + TRAINING + 2.0)
    assert seen.waiting_seconds == pytest.approx(GENERATION)
    assert seen.training_seconds == pytest.approx(TRAINING)
    assert seen.update_seconds == pytest.approx(2.0)
    assert seen.rollout_running == pytest.approx(GENERATION / seen.step_seconds)
    assert seen.trainer_bubble == pytest.approx(1 - TRAINING / seen.step_seconds)
    assert seen.tokens_per_second == pytest.approx(400 / seen.step_seconds)
    assert (seen.age_mean, seen.age_max, seen.partial, seen.dropped) == (0.0, 0, 0.0, 0.0)
    assert seen.mean_length == 50
    assert seen.floors.little == pytest.approx(seen.step_seconds)
    assert seen.floors.generation == pytest.approx(400 / (2 * 8 / (0.1 + 8 * 0.05)))


def test_the_scoring_pass_is_counted_where_it_is_asked_for() -> None:
    """`proximal: stored` costs a forward pass of the batch."""
    without = forecast(EQUAL, COSTS, Choice(), steps=2, warmup=1)
    scored = forecast(EQUAL, COSTS, Choice(old_pass=True), steps=2, warmup=1)
    assert scored.step_seconds - without.step_seconds == pytest.approx(400 * 0.005)


def test_one_version_of_staleness_hides_the_shorter_side() -> None:
    """With every slot taken by either batch the replicas are the bottleneck and never rest."""
    chosen = Choice(max_staleness=1.0, on_update=OnUpdate.KEEP)
    seen = forecast(EQUAL, attrs.evolve(COSTS, load_seconds=0.0), chosen, steps=12, warmup=4)
    assert seen.age_max == 1
    assert seen.rollout_running == pytest.approx(1.0)
    assert seen.step_seconds < GENERATION + TRAINING - 3
    assert seen.step_seconds >= seen.floors.highest - 1e-9


def test_on_shared_devices_a_switch_costs_its_time_once_a_step() -> None:
    """On-policy, generation, training and switch follow each other."""
    shared = attrs.evolve(COSTS, load_seconds=0.0, switch_seconds=6.0)
    seen = forecast(EQUAL, shared, Choice(), steps=3, warmup=1)
    assert seen.step_seconds == pytest.approx(GENERATION + TRAINING + 6.0)


def test_shared_devices_that_generate_ahead_switch_less_when_it_costs_more() -> None:
    """The rule lets more groups finish a cycle than a batch has, and no token is over age."""
    work = attrs.evolve(
        EQUAL, lengths=Lengths(quantile=LogNormal(median=20, spread=0.7), longest=64)
    )
    chosen = Choice(max_staleness=2.0, order=Order.COMPLETION)
    always = attrs.evolve(chosen, rule=lambda cycle: cycle.finished >= cycle.wanted)
    for choice in (chosen, always):
        shared = attrs.evolve(COSTS, switch_seconds=1.0)
        seen = forecast(work, shared, choice, steps=6, warmup=3)
        assert seen.age_max <= 2
        assert seen.step_seconds >= seen.training_seconds + 1.0


def test_what_is_too_old_is_trained_only_where_nothing_is_dropped() -> None:
    """F1 holds by dropping; a comparison with systems that do not drop shows their ages."""
    lengths = Lengths(quantile=LogNormal(median=20, spread=1.5), longest=400)
    work = attrs.evolve(EQUAL, lengths=lengths)
    chosen = Choice(max_staleness=0.5, order=Order.COMPLETION)
    bound = forecast(work, COSTS, chosen, steps=12, warmup=2)
    free = forecast(work, COSTS, attrs.evolve(chosen, drops_stale=False), steps=12, warmup=2)
    assert (bound.age_max, bound.dropped > 0) == (1, True)
    assert (free.age_max > 1, free.dropped) == (True, 0.0)


def test_a_forecast_is_repeated_by_its_seed() -> None:
    """O3: nothing but the seed decides."""
    work = attrs.evolve(
        EQUAL, lengths=Lengths(quantile=LogNormal(median=20, spread=0.7), longest=64)
    )
    chosen = Choice(max_staleness=1.0, order=Order.COMPLETION)
    first, again, other = (
        forecast(work, COSTS, chosen, steps=4, warmup=2, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other


@settings(max_examples=25, deadline=None)
@given(
    staleness=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    order=st.sampled_from([Order.SUBMISSION, Order.COMPLETION]),
    on_update=st.sampled_from(list(OnUpdate)),
    token=st.floats(0.001, 0.05),
    spread=st.floats(0.0, 1.5),
    replicas=st.integers(1, 3),
)
def test_no_schedule_beats_its_floors_and_every_share_is_one(
    staleness: float,
    order: Order,
    on_update: OnUpdate,
    token: float,
    spread: float,
    replicas: int,
) -> None:
    """R3, F1: shares lie in [0, 1], ages under the bound, steps over the trainer's floor."""
    work = attrs.evolve(
        EQUAL, lengths=Lengths(quantile=LogNormal(median=20, spread=spread), longest=64)
    )
    costs = attrs.evolve(
        COSTS, replicas=replicas, training=attrs.evolve(COSTS.training, token_seconds=token)
    )
    chosen = Choice(max_staleness=staleness, order=order, on_update=on_update)
    seen = forecast(work, costs, chosen, steps=4, warmup=2)
    assert seen.step_seconds >= seen.floors.training - 1e-9
    assert seen.age_max <= -(-staleness // 1)
    names = ("rollout_running", "rollout_reading", "rollout_use", "partial", "dropped")
    for share in (*(getattr(seen, name) for name in names), seen.trainer_bubble):
        assert -1e-9 <= share <= 1 + 1e-9


@given(
    st.floats(0, 10),
    st.floats(0, 10),
    st.lists(st.tuples(st.floats(1, 50), st.floats(1, 50)), min_size=2, max_size=8),
)
def test_a_fit_finds_the_numbers_that_made_its_steps(
    a: float, b: float, features: list[tuple[float, float]]
) -> None:
    """Whatever is found explains the steps, and is never negative."""
    seconds = [a * x + b * y for x, y in features]
    found = fit(seconds, [x for x, _ in features], [y for _, y in features])
    assert min(found) >= 0
    assert [found[0] * x + found[1] * y for x, y in features] == pytest.approx(
        seconds, rel=1e-3, abs=1e-3
    )


def _write_run(folder: Path, metrics: list[Mapping[str, Any]], lengths: list[list[int]]) -> None:
    rows = [{"step": step, **row} for step, row in enumerate(metrics, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples = [
        {"step": step, "phase": "train", "tokens": [1] * (3 + length), "prompt_length": 3}
        for step, of_step in enumerate(lengths, start=1)
        for length in of_step
    ]
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)))


def test_speeds_are_measured_from_a_runs_own_steps(tmp_path: Path) -> None:
    """A run made with 0.01 s a pass and 0.002 s a request; its first step warms up."""
    lengths = [[5, 9], [10, 20], [40, 8], [16, 12]]
    metrics = [
        {
            "time/wait": 0.01 * max(row) + 0.002 * sum(row) + (99 if step == 0 else 0),
            "time/train": 0.003 * (sum(row) + 6),
            "time/publish": 0.5,
        }
        for step, row in enumerate(lengths)
    ]
    _write_run(tmp_path, metrics, lengths)
    seen = speeds_of(tmp_path)
    assert seen.rollout.token_seconds == pytest.approx(0.01)
    assert seen.rollout.request_seconds == pytest.approx(0.002)
    assert seen.training.token_seconds == pytest.approx(0.003)
    assert (seen.load_seconds, seen.prompt_tokens) == (0.5, 3)


def test_a_run_that_says_nothing_of_speeds_is_refused(tmp_path: Path) -> None:
    """L1: what is missing, and what to do."""
    with pytest.raises(DataError, match="tracker jsonl"):
        speeds_of(tmp_path)
    aged = [{"time/wait": 1.0, "time/train": 1.0, "schedule/age": 0.5}]
    _write_run(tmp_path, aged, [[4]])
    with pytest.raises(DataError, match="max_staleness=0"):
        speeds_of(tmp_path)


MACHINE = Machine(
    gpus=4,
    rollout=RolloutSpeed(token_seconds=0.01, request_seconds=0.001, slots=16),
    training=TrainingCost(token_seconds=0.002),
    load_seconds=0.1,
    switch_seconds=0.2,
)


def test_devices_are_divided_and_none_is_lost() -> None:
    """A token costs a device its seconds, however many share the work."""
    assert MACHINE.separate(3).training.token_seconds == pytest.approx(0.002)
    assert MACHINE.separate(1).training.token_seconds == pytest.approx(0.002 / 3)
    assert MACHINE.colocated().replicas == 4
    with pytest.raises(WrongValue, match="4:0"):
        MACHINE.separate(4)


def test_a_sweep_offers_colocated_splits_and_orders_and_names_the_fastest() -> None:
    """The fastest is no slower than any other; of equals the freshest is taken."""
    offers = list(sweep(MACHINE, EQUAL, Choice(), staleness=(0.0, 1.0), steps=3))
    assert offers[0].is_colocated
    assert {one.choice.max_staleness for one in offers} == {0.0, 1.0}
    assert {one.choice.order for one in offers} == set(Order)
    wide = Choice(order=Order.WINDOW, window=99)
    narrowed = [one.choice.window for one in sweep(MACHINE, EQUAL, wide, steps=1) if one.generate]
    assert max(window or 0 for window in narrowed) == 6  # of 4 groups, at staleness 2
    best = fastest(offers)
    assert best.seen.step_seconds <= 1.02 * min(one.seen.step_seconds for one in offers)
