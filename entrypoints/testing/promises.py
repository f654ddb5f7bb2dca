"""What every run must keep, whatever happened to it: checks on what it left behind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from hexpo.adapters.simulated.world import SimulatedTracker
from hexpo.application.continuing import OnUpdate
from hexpo.application.ports.tracker import Sample
from hexpo.domain.schedule import Gate, Order
from hexpo.domain.schedule.capacity import cut_evenly
from hexpo.entrypoints.testing.broken import Broken, require
from hexpo.entrypoints.testing.faults import FaultyFleet
from hexpo.entrypoints.testing.fleets import WatchedReplicas
from hexpo.entrypoints.testing.mortal import Mishap
from hexpo.entrypoints.testing.scenarios import EVALUATED, Scenario
from hexpo.entrypoints.testing.sequential import sequential


def check_process(
    scenario: Scenario, tracker: SimulatedTracker, rollout: FaultyFleet, *, ended_well: bool
) -> None:
    """What one process reported while it lived."""
    steps = [step for step, numbers in tracker.reports if "time/step" in numbers]
    require(all(a < b for a, b in pairwise(steps)), f"N5: steps are not monotone: {steps}")
    every = [step for step, _ in tracker.reports]
    require(every == sorted(every), f"N5: an evaluation was reported late: {every}")
    _check_evaluations(tracker)
    for step, numbers in tracker.reports:
        for name, value in numbers.items():
            require(math.isfinite(value), f"R: {name} of step {step} is {value}")
            if "share" in name or "busy" in name:
                require(0 <= value <= 1 + 1e-9, f"R3: {name} of step {step} is {value}")
        _check_latency(scenario, step, numbers)
        if scenario.order is Order.SUBMISSION:
            require(numbers.get("bias/passed", 0) == 0, f"F3: step {step} passed older groups by")
        if "schedule/age_max" in numbers:
            oldest = scenario.plan.max_age
            require(numbers["schedule/age_max"] <= oldest, f"F1: a group older than {oldest}")
    if isinstance(rollout.inner, WatchedReplicas):
        require(not rollout.inner.broken, "; ".join(rollout.inner.broken[:3]))
    if ended_well:
        require(rollout.pauses == rollout.resumes, "R2: a pause without its resume")
    _check_ages(scenario, tracker.records)
    for answer in rollout.given:
        touched = answer.tokens._version or answer.logprobs._version
        require(not touched, "F9: an answer was changed in place")


def _check_evaluations(tracker: SimulatedTracker) -> None:
    """Each measured one version, and says which."""
    name = "evaluate/held-out/version"
    versions = [numbers[name] for _, numbers in tracker.reports if name in numbers]
    rows = [record for record in tracker.records if record.phase.startswith("evaluate")]
    wanted = [version for version in versions for _ in range(EVALUATED)]
    require(len(rows) == len(wanted), f"{len(rows)} answers of {len(versions)} evaluations")
    for row, version in zip(rows, wanted, strict=True):
        found = set(row.versions[row.prompt_length :])
        require(found <= {version}, f"Y10: an evaluation of {version} has answers of {found}")


def _check_latency(scenario: Scenario, step: int, numbers: Mapping[str, float]) -> None:
    """An update waits for the transfer and a token, never for an answer, unless it drains."""
    if scenario.on_update is OnUpdate.DRAIN or scenario.fleet:
        return  # replicas look at each update themselves
    bound = scenario.load_seconds + scenario.token_seconds + 20 * scenario.jitter + 1e-6
    seconds = max(numbers.get("time/publish", 0.0), numbers.get("time/switch", 0.0))
    require(seconds <= bound, f"F6: the update of step {step} took {seconds} s of {bound}")


def _check_ages(scenario: Scenario, records: Sequence[Sample]) -> None:
    for record in records:
        if record.phase != "train" or record.score is None:
            continue
        if record.stop in ("aborted", "timeout", "failed"):
            raise Broken(f"F8: {record} was trained")
        latest = record.step - 1
        for version in set(record.versions[record.prompt_length :]):
            if not 0 <= latest - version <= scenario.plan.max_age:
                raise Broken(f"F1: a token of age {latest - version} in {record}")


def check_run(
    scenario: Scenario, *, trained: Sequence[Sequence[int]], gate: Gate, records: Sequence[Sample]
) -> None:
    """What all processes together came to."""
    wanted_steps = scenario.steps * len(cut_evenly(scenario.groups, scenario.parts))
    require(
        len(trained) == wanted_steps, f"progress: {len(trained)} of {wanted_steps} optimizer steps"
    )
    rows = Counter(row for step in trained for row in step)
    twice = [row for row, times in rows.items() if times > 1]
    require(not twice, f"H1: rows {twice} were trained more than once")
    train = [record for record in records if record.phase == "train"]
    for record in train:
        wanted = str(record.group % scenario.prompts)
        require(record.prompt_id == wanted, f"H1: group {record.group} asked another prompt")
    final = {record.group: record.step for record in train}
    require(
        gate.ledger.trained == len(final),
        f"F2: {gate.ledger.trained} groups were counted as trained, {len(final)} were seen",
    )
    failed = {record.id for record in train if record.score is None}
    require(not failed & set(rows), f"B7: rows {failed & set(rows)} have no score and were trained")
    _check_sizes(scenario, final)
    if scenario.staleness == 0:
        _check_sequential(scenario, train)


def _check_sizes(scenario: Scenario, final: dict[int, int]) -> None:
    sizes = Counter(final.values())
    for step in range(1, scenario.steps + 1):
        fits = (
            1 <= sizes[step] <= scenario.groups
            if scenario.filters
            else (sizes[step] == scenario.groups)
        )
        require(fits, f"step {step} trained {sizes[step]} groups of {scenario.groups}")


def _check_sequential(scenario: Scenario, train: Sequence[Sample]) -> None:
    """On-policy, the run equals a plain loop that does one thing after the other."""
    silent = any(one.kind in (Mishap.HANGS, Mishap.BABBLES) for one in scenario.faults)
    if scenario.filters or silent:  # rows fail that would not have
        return
    oracle = sequential(scenario)
    for record in train:
        mine = (record.step, record.tokens, record.logprobs, record.score)
        require(
            oracle.get(record.id) == mine,
            f"Y8: row {record.id} is {mine}, one after the other it is {oracle.get(record.id)}",
        )
    require(oracle.keys() == {record.id for record in train}, "Y8: other rows were trained")
