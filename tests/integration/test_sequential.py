"""The oracle of on-policy training with a real model: the same parts in a plain loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch

from hexpo.application.continuing import OnUpdate
from hexpo.application.learning import Lesson
from hexpo.application.timing import Stopwatch
from hexpo.domain.metrics import values
from hexpo.domain.trajectory import Ticket
from hexpo.entrypoints.library import build

STEPS, GROUPS, SAMPLES = 3, 2, 4
SAME = ("reward/mean", "loss/policy", "train/gradient_norm", "tokens/generated", "age/max")


async def one_after_the_other(container: Any) -> list[dict[str, float]]:
    """Generate all, grade all, train, publish: no gate, no queue, nothing in flight."""
    await container.processes().start()
    rollout, learner, found = container.rollout(), container.learner(), []
    for step in range(STEPS):
        tickets = [
            Ticket(
                number=step * GROUPS + place,
                prompt=container.source().draw(),
                version=step,
                samples=SAMPLES,
            )
            for place in range(GROUPS)
        ]
        async with asyncio.TaskGroup() as tasks:
            plays = [tasks.create_task(container.player().play(one)) for one in tickets]
        lesson = Lesson()
        await learner.add(lesson, [play.result() for play in plays], Stopwatch())
        learnt = await learner.close(lesson)
        await rollout.pause(OnUpdate.KEEP.pause_mode)
        await container.transfer().transfer(learnt.version)
        await rollout.resume()
        found.append(values(learnt.metrics))
    await container.opened().close()
    return found


def test_staleness_zero_equals_a_plain_loop_bit_for_bit_with_a_real_model(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """Y8: the same weights, rewards and losses; what answers together is the same in both."""
    looped = build(tiny, f"run.steps={STEPS}", folder=tmp_path / "loop")
    history = looped.train().history
    plain = build(tiny, f"run.steps={STEPS}", folder=tmp_path / "plain")
    steps = asyncio.run(one_after_the_other(plain.container))
    for mine, theirs in zip(history, steps, strict=True):
        assert {name: mine[name] for name in SAME} == {name: theirs[name] for name in SAME}
    assert len({step["loss/policy"] for step in steps}) == STEPS
    weights = [run.container.policy().module.state_dict() for run in (looped, plain)]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
