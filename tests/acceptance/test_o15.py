"""O15: ages, order and accounting over 20 steps, with fast even prompts and slow odd ones."""

from __future__ import annotations

import pytest

from hexpo.application.ports.rollout import Request
from hexpo.domain.schedule import Order
from hexpo.entrypoints.testing import faults
from hexpo.entrypoints.testing.explorer import World, check
from hexpo.entrypoints.testing.scenarios import Scenario

STEPS, GROUPS = 20, 2


def ticks(scenario: Scenario, request: Request) -> int:
    """Even prompts take 1 tick, odd ones 5; requests are named by their group and sample."""
    group = int(request.id.split(".")[1])
    return 5 if group % 2 else 1


def trained(monkeypatch: pytest.MonkeyPatch, staleness: float, order: Order) -> World:
    monkeypatch.setattr(faults, "_length", ticks)
    scenario = Scenario(
        seed=0,
        groups=GROUPS,
        steps=STEPS,
        staleness=staleness,
        order=order,
        prompts=1000,
        slots=64,
        token_seconds=1.0,
        step_seconds=1.0,
    )
    [world] = check(scenario)
    return world


@pytest.mark.parametrize("order", list(Order)[:2])
@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_no_token_is_older_than_the_bound_and_every_step_completes(
    monkeypatch: pytest.MonkeyPatch, staleness: float, order: Order
) -> None:
    """O15.1: trainer version minus the token's own."""
    world = trained(monkeypatch, staleness, order)
    ages = [
        record.step - 1 - version
        for record in world.tracker.records
        for version in record.versions[record.prompt_length :]
    ]
    assert min(ages) == 0
    assert max(ages) == staleness
    assert len(world.engine.trained) == STEPS


@pytest.mark.parametrize("order", list(Order)[:2])
@pytest.mark.parametrize("staleness", [0.0, 1.0, 2.0])
def test_every_prompt_is_trained_once_or_accounted_for(
    monkeypatch: pytest.MonkeyPatch, staleness: float, order: Order
) -> None:
    """O15.2: trained, dropped with a reason, or in flight: the sum matches."""
    world = trained(monkeypatch, staleness, order)
    history = [numbers for _, numbers in world.tracker.reports if "schedule/trained" in numbers]
    groups = {record.group for record in world.tracker.records}
    dropped = sum(
        value
        for numbers in history
        for name, value in numbers.items()
        if name.startswith("schedule/dropped/")
    )
    assert len(groups) == sum(numbers["schedule/trained"] for numbers in history) == STEPS * GROUPS
    gate = world.rollouts.gate
    assert gate.ledger.issued == len(groups) + dropped + len(world.rollouts.in_flight)


@pytest.mark.parametrize("staleness", [0.0, 1.0])
def test_slow_prompts_are_trained_as_often_as_fast_ones(
    monkeypatch: pytest.MonkeyPatch, staleness: float
) -> None:
    """O15.3: in order of submission they differ by no more than what is in flight."""
    world = trained(monkeypatch, staleness, Order.SUBMISSION)
    groups = {record.group for record in world.tracker.records}
    odd = sum(group % 2 for group in groups)
    assert abs(len(groups) - 2 * odd) <= len(world.rollouts.in_flight)
    assert sorted(groups) == list(range(STEPS * GROUPS))


def test_every_step_reports_ages_and_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """O15.4: mean and maximum age, dropped and re-queued counts."""
    world = trained(monkeypatch, 1.0, Order.COMPLETION)
    history = [numbers for _, numbers in world.tracker.reports if "schedule/trained" in numbers]
    assert len(history) == STEPS
    for numbers in history:
        assert {
            "schedule/age",
            "schedule/age_max",
            "schedule/requeued",
            "schedule/dropped/stale",
        } <= numbers.keys()
        assert numbers["schedule/age"] <= numbers["schedule/age_max"] <= 1


@pytest.mark.parametrize("staleness", [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
def test_in_order_of_submission_groups_are_on_average_as_old_as_is_allowed(
    staleness: float,
) -> None:
    """F1: a fraction lowers the share of aged groups; a group of 4 is 1 version old with 0.25."""
    [world] = check(Scenario(seed=0, groups=4, steps=8, staleness=staleness, slots=64, whole=False))
    ages = [numbers["schedule/age"] for _, numbers in world.tracker.reports]
    assert ages[4:] == [staleness] * 4
