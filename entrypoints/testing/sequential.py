"""The oracle of on-policy training: ask, grade and train, one thing after the other."""

from __future__ import annotations

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.world import SimulatedPrompts, SimulatedTokenizer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.ports.transfer import Update
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import Scored, Ticket
from hexpo.entrypoints.testing.faults import FaultyFleet
from hexpo.entrypoints.testing.scenarios import Scenario
from hexpo.entrypoints.testing.worlds import ScenarioReward

Row = tuple[int, tuple[int, ...], tuple[float, ...], float | None]
"""Step, ids, log-probs, score."""


def sequential(scenario: Scenario) -> dict[int, Row]:
    """Every trained group's rows by id, from a loop without tasks, gate or clock."""
    return run(_sequential(scenario))


async def _sequential(scenario: Scenario) -> dict[int, Row]:
    source, tokenizer = SimulatedPrompts(scenario.prompts), SimulatedTokenizer()
    engine, rows, number = FaultyFleet(scenario), dict[int, Row](), 0
    agent = SingleTurn(
        rollout=engine,
        tokenizer=tokenizer,
        sampling=Sampling(max_new_tokens=64),
        seed=scenario.seed,
    )
    policy = RetryPolicy(deadline_seconds=scenario.deadline_seconds)
    reward = ScenarioReward(scenario)
    player = Player(agent, reward, policy=policy, give_up_after=10**6, vocabulary=32)
    for step in range(1, scenario.steps + 1):
        kept = 0
        while kept < scenario.groups:
            ticket = Ticket(
                number=number, prompt=source.draw(), version=step - 1, samples=scenario.samples
            )
            group, number = await player.play(ticket), number + 1
            if not any(isinstance(row.outcome, Scored) for row in group.rows):
                continue
            kept += 1
            for row in group.rows:
                score = row.outcome.value if isinstance(row.outcome, Scored) else None
                episode = row.trajectory
                ids, logprobs = tuple(episode.tokens.tolist()), tuple(episode.behaviour.tolist())
                rows[episode.id] = (step, ids, logprobs, score)
        await engine.pause(scenario.on_update.pause_mode)
        await engine.load_weights(Update(version=step))
        await engine.resume()
    return rows
