"""Playing a ticket: failures become values, programming errors stop the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import answer

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.soundness import flaw_of
from hexpo.application.tasks import first_failure
from hexpo.domain.errors import EngineFailed, RewardUnavailable
from hexpo.domain.trajectory import (
    Cause,
    Failed,
    Group,
    Outcome,
    Prompt,
    Scored,
    StopReason,
    Ticket,
    Trajectory,
)


def ticket(number: int, samples: int = 4) -> Ticket:
    prompt = Prompt(id=f"p{number}", messages=())
    return Ticket(number=number, prompt=prompt, version=0, samples=samples)


class ScriptedAgent:
    """Calls a function of (ticket number, sample, attempt) and waits one virtual second."""

    def __init__(self, act: Callable[[int, int, int], float]) -> None:
        self._act = act
        self.tries: dict[tuple[int, int], int] = {}

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        attempt = self.tries[ticket.number, sample] = self.tries.get((ticket.number, sample), 0) + 1
        await asyncio.sleep(self._act(ticket.number, sample, attempt))
        return answer(ticket, sample)


def play(agent: ScriptedAgent, *tickets: Ticket, policy: RetryPolicy) -> list[Group]:
    async def main() -> list[Group]:
        player = Player(agent, SimulatedReward(), policy=policy, give_up_after=3)
        try:
            async with asyncio.TaskGroup() as tasks:
                plays = [tasks.create_task(player.play(t)) for t in tickets]
        except BaseExceptionGroup as group:
            raise first_failure(group) from None
        return [task.result() for task in plays]

    return run(main())


def test_one_raising_and_one_endless_rollout_leave_their_peers_alone() -> None:
    """O16: retried and used; cancelled without reward; eleven of twelve train."""

    def act(number: int, sample: int, attempt: int) -> float:
        if (number, sample, attempt) == (1, 0, 1):
            raise ConnectionError("the tool server hung up")
        return 1e9 if (number, sample) == (1, 2) else 1.0

    policy = RetryPolicy(retries=1, deadline_seconds=2.0)
    agent = ScriptedAgent(act)
    groups = play(agent, ticket(0), ticket(1), ticket(2), policy=policy)
    rows = [graded for group in groups for graded in group.rows]
    failed = [graded for graded in rows if isinstance(graded.outcome, Failed)]
    assert agent.tries[1, 0] == 2
    assert agent.tries[1, 2] == 1
    assert len(rows) == 12
    [endless] = failed
    assert endless.trajectory.stop is StopReason.TIMEOUT
    assert endless.outcome.cause is Cause.TIMED_OUT  # type: ignore[union-attr]
    assert not endless.trajectory.action.any()
    assert endless.trajectory.group == 1
    assert all(isinstance(graded.outcome, Scored) for graded in rows if graded is not endless)


def test_an_error_that_hits_every_rollout_stops_the_run_with_its_own_traceback() -> None:
    """O16, L4: a wrong type in the environment is not retried for ever."""

    def act(number: int, sample: int, attempt: int) -> float:
        return "one" + 1  # type: ignore[operator, no-any-return]

    with pytest.raises(TypeError) as caught:
        play(ScriptedAgent(act), ticket(0), ticket(1), ticket(2), policy=RetryPolicy(retries=1))
    assert caught.traceback[-1].name == "act"


def test_errors_of_a_few_rollouts_never_stop_the_run() -> None:
    """L3: a streak is broken by every success."""

    def act(number: int, sample: int, attempt: int) -> float:
        if sample == 0:
            raise ValueError("always this one")
        return 1.0

    tickets = [ticket(number) for number in range(30)]
    groups = play(ScriptedAgent(act), *tickets, policy=RetryPolicy(retries=0))
    failed = [row for group in groups for row in group.rows if row.trajectory.failure]
    assert len(failed) == 30
    assert {row.trajectory.stop for row in failed} == {StopReason.FAILED}


class Babbling:
    """Whose answers to some tickets can be none, of one sample or of all; `cut` ones are parts."""

    def __init__(self, bad: Sequence[str]) -> None:
        self._bad = bad
        self.played = 0

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        self.played = max(self.played, ticket.number + 1)
        row, kind = answer(ticket, sample), self._bad[ticket.number]
        if kind == "cut":
            return attrs.evolve(row, stop=StopReason.ABORTED)
        if kind == "all" or (kind == "some" and sample == 1):
            return attrs.evolve(row, tokens=torch.full_like(row.tokens, -1))
        return row


def play_babbling(agent: Babbling, tickets: int, engine: str) -> None:
    async def main() -> None:
        reward, policy = SimulatedReward(), RetryPolicy()
        player = Player(agent, reward, policy=policy, give_up_after=3, engine=engine)
        for number in range(tickets):
            await player.play(ticket(number))

    run(main())


@given(st.lists(st.sampled_from(["no", "some", "all", "cut"]), max_size=20))
def test_a_lone_engine_whose_answers_to_three_prompts_can_be_none_ends_the_run(
    bad: list[str],
) -> None:
    """O16, F4: as a dead one does, with its name and a flaw; one good answer forgives, and what an
    update cut is no fault of it."""
    ends = [place + 3 for place in range(len(bad) - 2) if bad[place : place + 3] == ["all"] * 3]
    agent = Babbling(bad)
    if not ends:
        play_babbling(agent, len(bad), "toy")
        return
    with pytest.raises(EngineFailed, match=r"engine toy talks nonsense: .* 3 prompts .* -1 to -1"):
        play_babbling(agent, len(bad), "toy")
    assert agent.played == ends[0]


def test_one_engine_of_several_that_talks_nonsense_does_not_end_a_run_here() -> None:
    """O16: whoever sends the requests fences it, and the others go on."""
    agent = Babbling(["all"] * 9)
    play_babbling(agent, 9, "")
    assert agent.played == 9


@pytest.mark.parametrize(("sampled", "says"), [(False, None), (True, "ids from 1 to 99")])
def test_only_what_was_sampled_has_to_be_an_answer(*, sampled: bool, says: str | None) -> None:
    """B7: ids and versions of a prompt are nobody's answer."""
    row = answer(ticket(0), 0)
    tokens, version = torch.tensor([99, 1, 2]), torch.tensor([-1, 0, 0])
    action = torch.tensor([sampled, True, True])
    flaw = flaw_of(attrs.evolve(row, tokens=tokens, version=version, action=action), vocabulary=32)
    assert (flaw is None) if says is None else (says in str(flaw))


class ScriptedReward:
    """Grades by a function of the trajectory's id, and counts."""

    def __init__(self, grade: Callable[[int], Outcome]) -> None:
        self._grade, self.graded = grade, 0

    async def grade(self, rows: Sequence[Trajectory]) -> Sequence[Outcome]:
        self.graded += len(rows)
        return [self._grade(row.id) for row in rows]

    async def close(self) -> None: ...


def play_graded(reward: ScriptedReward, tickets: int) -> list[Group]:
    async def main() -> list[Group]:
        agent = ScriptedAgent(lambda number, sample, attempt: 1.0)
        player = Player(agent, reward, policy=RetryPolicy(), give_up_after=3)
        return [await player.play(ticket(number)) for number in range(tickets)]

    return run(main())


@pytest.mark.parametrize("cause", [Cause.RAISED, Cause.TIMED_OUT, Cause.BAD_RESULT])
def test_a_grader_that_never_graded_anything_stops_the_run(cause: Cause) -> None:
    """F4, K2: a function that hangs at every sample would cost its bound for each of a budget."""
    reward = ScriptedReward(lambda place: Failed(cause=cause, message=f"number {place}"))
    with pytest.raises(RewardUnavailable, match=r"first 3 prompts .* number 0"):
        play_graded(reward, 9)
    assert reward.graded == 12


@pytest.mark.parametrize(
    "first", [Scored(value=0.0), Failed(cause=Cause.UNSUPPORTED, message="no such source")]
)
def test_a_grader_that_graded_once_or_declined_is_not_given_up(first: Outcome) -> None:
    """K3, L3: what fails later fails row by row."""
    broken = Failed(cause=Cause.RAISED, message="no such truth")
    groups = play_graded(ScriptedReward(lambda place: broken if place else first), 9)
    assert len(groups) == 9
