"""Conversations whose further messages are in the data, played by the real engine and learnt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from hexpo.application.agents import Dialogue
from hexpo.domain.errors import ConfigurationError, WrongValue
from hexpo.domain.trajectory import Message, Prompt, StopReason, Ticket, Trajectory
from hexpo.entrypoints.library import Run, build

SOON_ENDED = list(range(0, 260, 3))
"""A third of all ids end an answer of the random model."""
FOLLOW_UPS = ["and 2 ?", {"role": "system", "content": "be brief"}, "sure ?"]
PLAYED = [
    "rollout.agent=dialogue",
    f"rollout.sampling={{stop_ids: {SOON_ENDED}}}",
    "rollout.max_new_tokens=96",
]
TERM = "algorithm.terms=[{name: world, loss: observation_nll, coefficient: 0.5}]"


@pytest.fixture
def talks(tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Rows that are asked on three times, and one that is not."""
    rows = [
        {"id": f"row-{n}", "prompt": f"{n} + 1 = ?", "truth": str(n + 1)}
        | ({"follow_ups": FOLLOW_UPS} if n else {})
        for n in range(4)
    ]
    data = tmp_path / "talks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny["data"]["train"]["options"]["paths"] = [str(data)]
    return tiny


def play(run: Run, *, samples: int = 12, **changes: Any) -> list[Trajectory]:
    """Samples of one prompt by the run's own agent."""
    agent = attrs.evolve(run.container.agent(), **changes)
    prompt = Prompt(
        id="p", messages=(Message("user", "1 + 1 ="),), extra={"follow_ups": FOLLOW_UPS}
    )
    ticket = Ticket(number=0, prompt=prompt, version=0, samples=samples)

    async def all_of() -> list[Trajectory]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent.run(ticket, i)) for i in range(samples)]
        return [task.result() for task in tasks]

    return asyncio.run(all_of())


def runs_of(action: torch.Tensor) -> list[tuple[int, int]]:
    """Start and end of each stretch that the policy sampled."""
    edges = torch.diff(action.int(), prepend=torch.zeros(1), append=torch.zeros(1)).nonzero()
    return [(int(a), int(b)) for a, b in edges[:, 0].reshape(-1, 2)]


def test_turns_lie_end_to_end_and_no_id_is_encoded_twice(talks: dict[str, Any]) -> None:
    """E1, D4: between two answers stand the template's ids of the next message, of which its words
    alone have a weight; every answer but the last ended by itself."""
    run = build(talks, *PLAYED)
    tokenizer = run.container.tokenizer()
    rows = play(run)
    assert max(len(runs_of(row.action)) for row in rows) == 1 + len(FOLLOW_UPS)
    script = [Message("user", "and 2 ?"), Message("system", "be brief"), Message("user", "sure ?")]
    for row in rows:
        spans = runs_of(row.action)
        assert spans[0][0] == row.prompt_length == len(tokenizer.render(row.prompt.messages))
        assert row.observation is not None
        for message, (_, end), (start, _) in zip(script, spans, spans[1:], strict=False):
            ended = int(row.tokens[end - 1]) in tokenizer.stop_ids
            between = tokenizer.render_next(row.prompt.messages, message, ended=ended)
            assert tuple(row.tokens[end:start].tolist()) == between.ids
            weight = 1.0 if message.role == "user" else 0.0
            assert row.observation[end:start].tolist() == [weight * said for said in between.said]
            assert int(row.tokens[end - 1]) in {*SOON_ENDED, *tokenizer.stop_ids}
        assert not row.observation[row.action].any()
        assert row.text == tokenizer.decode(row.tokens[spans[-1][0] : spans[-1][1]].tolist())


def test_the_first_answer_is_that_of_a_single_turn(talks: dict[str, Any]) -> None:
    """Y2: its randomness does not depend on what follows."""
    several = play(build(talks, *PLAYED))
    alone = play(build(talks, *PLAYED[1:], "rollout.agent=single_turn"))
    for row, one in zip(several, alone, strict=True):
        assert torch.equal(row.tokens[: len(one.tokens)], one.tokens)


@pytest.mark.parametrize("budget", [1, 7, 20, 40])
def test_a_conversation_ends_where_its_budget_does(talks: dict[str, Any], budget: int) -> None:
    """O09: the budget is that of all that follows the prompt, and what is cut says so."""
    run = build(talks, *PLAYED, f"rollout.max_new_tokens={budget}")
    for row in play(run):
        assert len(row.tokens) - row.prompt_length <= budget
        assert row.action[-1]
        is_whole = len(runs_of(row.action)) == 1 + len(FOLLOW_UPS)
        assert is_whole or row.stop is StopReason.LENGTH


def test_a_run_learns_what_others_say_beside_what_it_says(talks: dict[str, Any]) -> None:
    """A6, C1: the term has a denominator of its own, rollout and trainer agree over all turns, and
    what the policy did not say has no part in the other terms."""
    found = build(talks, *PLAYED, TERM).train()
    for row in found.history:
        assert row["tokens/observation"] > 0
        assert row["loss/world"] > 0
        assert row["agreement/gap"] < 1e-4
    silent = build(talks, *PLAYED, TERM.replace("0.5", "0.0")).train()
    plain = build(talks, *PLAYED).train()
    assert silent.history[-1]["loss/policy"] == plain.history[-1]["loss/policy"]
    assert found.history[-1]["loss/policy"] != plain.history[-1]["loss/policy"]


def test_a_mask_of_what_was_sampled_leaves_what_others_say(talks: dict[str, Any]) -> None:
    """A6, X6: whatever it takes, the observed tokens and their denominator stay."""
    strict = "{name: rejection, options: {divergence: k2, over: max, high: 1.0e-30}}"
    taken, left = (
        build(talks, *PLAYED, TERM, correction, "training.updates_per_batch=2", "run.steps=1")
        .train()
        .history[0]
        for correction in (f"algorithm.correction=[{strict}]", "algorithm.correction=[]")
    )
    assert taken["tokens/kept"] < taken["tokens/trained"] / 2
    assert taken["tokens/observation"] == left["tokens/observation"] > 0


@pytest.mark.parametrize(
    "agent", ["single_turn", "{kind: dialogue, options: {weights: {user: 0.0, tool: 0.0}}}"]
)
def test_a_term_on_observations_needs_an_agent_that_has_them(
    talks: dict[str, Any], agent: str
) -> None:
    """M2, M3: said before anything loads, with the way out."""
    with pytest.raises(ConfigurationError, match=r"rollout\.agent: dialogue"):
        build(talks, *PLAYED, f"rollout.agent={agent}", TERM)


@pytest.mark.parametrize("script", ["and 2 ?", [1], [{"role": "assistant", "content": "2"}]])
def test_a_script_that_is_none_fails_its_sample_by_name(talks: dict[str, Any], script: Any) -> None:
    """L4: the row and the field are named."""
    agent = build(talks, *PLAYED).container.agent()
    assert isinstance(agent, Dialogue)
    prompt = Prompt(id="row-7", messages=(Message("user", "hi"),), extra={"follow_ups": script})
    ticket = Ticket(number=0, prompt=prompt, version=0, samples=1)
    with pytest.raises(WrongValue, match="'row-7': follow_ups must be a list"):
        asyncio.run(agent.run(ticket, 0))
