"""Both sides on one device, and replicas lent to evaluations: coverage, and mistakes found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from hexpo.application.dispatch import Desk
from hexpo.application.evaluate import Evaluator
from hexpo.application.membership import Member, Standing
from hexpo.application.replicas import Replicas
from hexpo.application.residency import Residency
from hexpo.application.schedule import Side
from hexpo.domain.errors import EngineFailed
from hexpo.domain.schedule.residency import moves
from hexpo.entrypoints.testing.broken import Broken
from hexpo.entrypoints.testing.explorer import check, explore
from hexpo.entrypoints.testing.mortal import Mishap
from hexpo.entrypoints.testing.scenarios import Fault, Interruption, Scenario, draw


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Every fenced replica is logged with its error."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def seeds(where: Callable[[Scenario], bool], count: int) -> list[int]:
    """The first ones whose scenarios are so."""
    found: list[int] = []
    seed = 0
    while len(found) < count:
        if where(draw(seed)):
            found.append(seed)
        seed += 1
    return found


def is_shared(scenario: Scenario) -> bool:
    return scenario.shared


def is_lent(scenario: Scenario) -> bool:
    return scenario.side is Side.LEASE


SHARED = Scenario(
    seed=3, groups=2, samples=2, steps=6, staleness=2.0, shared=True, save_every=1, tail=1.2
)
LENT = Scenario(
    seed=1, groups=1, samples=1, steps=12, staleness=1.0, slots=8, fleet=2, side=Side.LEASE,
    evaluate_every=1,
)  # fmt: skip


def test_a_run_that_takes_turns_on_one_device_keeps_every_promise_and_fills_it() -> None:
    """I3, F1: answers run ahead, over switches, and never do both sides stand there with a cache:
    memory is free before the other side starts."""
    [world] = check(SHARED)
    assert world.shared is not None
    assert world.shared.device.peak == 90
    ages = [numbers["age/max"] for _, numbers in world.tracker.reports]
    assert max(ages) > 0
    switches = [owner for _, owner, size in world.shared.device.history if not size]
    assert switches == ["rollout", "policy"] * SHARED.steps


@pytest.mark.parametrize("kind", ["crash", "stop", "engine", "transfer", "grader"])
def test_a_run_on_one_device_goes_on_after_it_was_interrupted(kind: str) -> None:
    """I3, H1: the weights of a resumed run find room, too."""
    interruption = Interruption(kind=kind, after=7.0)
    scenario = Scenario(
        seed=3, steps=6, staleness=1.0, shared=True, save_every=1, interruptions=(interruption,)
    )
    _, second = check(scenario)
    assert second.tracker.begun[0] > 0


def test_replicas_are_lent_while_training_goes_on() -> None:
    """Y10, N5: reported under the version of its start, while the next ones are trained."""
    [world] = check(LENT)
    late = [
        step - numbers["evaluate/held-out/step"]
        for step, numbers in world.tracker.reports
        if "evaluate/held-out/step" in numbers
    ]
    assert max(late) >= 1
    assert max(numbers.get("replicas/leased", 0) for _, numbers in world.tracker.reports) == 1


def test_generation_goes_on_while_the_trainer_answers_an_evaluation() -> None:
    """Y10: what an evaluation takes is not waited for by the next batch."""

    def seconds(side: Side) -> float:
        [world] = check(
            Scenario(seed=1, steps=6, staleness=1.0, evaluate_every=1, side=side, step_seconds=0.0)
        )
        return sum(numbers.get("time/wait", 0.0) for _, numbers in world.tracker.reports[1:])

    assert seconds(Side.TRAINER) < 0.7 * seconds(Side.ROLLOUT)


@pytest.mark.parametrize("kind", [Mishap.DIES, Mishap.OTHER, Mishap.LIES, Mishap.CUT])
def test_a_lent_replica_that_is_struck_takes_nothing_with_it(kind: Mishap) -> None:
    """G2, Y10: the evaluation is asked of another one; what comes back with other weights serves
    nobody."""
    faults = tuple(
        Fault(kind=kind, replica=f"replica-{place}", after=3.0 + place, back=5.0)
        for place in range(2)
    )
    [world] = check(
        Scenario(
            seed=5, groups=3, samples=3, steps=8, staleness=1.0, slots=8, fleet=4, side=Side.LEASE,
            evaluate_every=1, catch_up=True, faults=faults,
        )
    )  # fmt: skip
    assert len(world.engine.trained) == 8


def test_drawn_scenarios_share_devices_lend_replicas_and_lose_graders() -> None:
    """The explorer's own coverage."""
    drawn = [draw(seed) for seed in range(400)]
    ahead = [one for one in drawn if one.shared and one.staleness]
    hurt = [one for one in drawn if is_lent(one) and one.faults]
    gone = [one for one in drawn for end in one.interruptions if end.kind == "grader"]
    own = [one for one in drawn if one.side is Side.TRAINER and one.evaluate_every]
    assert min(len(ahead), len(hurt), len(gone), len(own)) > 20


# Mistakes that the explorer must find


async def _comes_first(self: Residency, wanted: Iterable[str]) -> None:
    needed = moves(self._here, wanted)
    await self._each(needed.into, away=False)
    await self._each(needed.out, away=True)


def test_a_side_that_comes_before_the_other_has_gone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I3."""
    monkeypatch.setattr(Residency, "_change", _comes_first)
    with pytest.raises(EngineFailed, match="out of memory"):
        explore(seeds(is_shared, 3))


def _updates_all(self: Replicas) -> list[Member]:
    return [member for member in self._members.values() if not member.is_fenced]


def _stays(self: Desk, member: Member) -> None:
    if member.standing is not Standing.LEASED:
        shut_as_it_is(self, member)


shut_as_it_is = Desk.shut


async def _returns_as_it_is(self: Replicas, member: Member, *, loaded: bool = True) -> None:
    member.standing = Standing.SERVING
    self._desk.open(member)


async def _measures_the_present(self: Evaluator) -> Any:
    return await self.run()


MISTAKES = {
    "lent ones updated": (Replicas, "_updated", _updates_all, "Y10|G2"),
    "lent ones asked": (Desk, "shut", _stays, "was asked while leased"),
    "returned as they are": (Replicas, "_return", _returns_as_it_is, "beside version|Y10"),
    "measured while weights change": (Evaluator, "run_beside", _measures_the_present, "Y10"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_lending_is_found(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    """The explorer can fail."""
    owner, name, replacement, promise = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises(Broken, match=promise):
        explore(seeds(is_lent, 30))
