"""A batch that is trained part by part gives the weights of the whole one, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from tests.tiny import llama
from torch import Tensor

from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.rollout import Script, SimulatedRollout
from hexpo.adapters.simulated.world import (
    SimulatedPrompts,
    SimulatedReward,
    SimulatedTokenizer,
    SimulatedTracker,
)
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training.fsdp import Config, build
from hexpo.adapters.transfer.shared import SharedTransfer
from hexpo.application.agents import SingleTurn
from hexpo.application.grading import Player, RetryPolicy
from hexpo.application.learning import POLICY, Learner, LearningSettings, Recipe, Role
from hexpo.application.rollouts import Rollouts
from hexpo.application.schedule import Schedule
from hexpo.application.train import Trainer
from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.losses.reinforce import cispo
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import open_gate, plan
from hexpo.domain.trajectory import Scored, Trajectory
from hexpo.entrypoints.testing.worlds import Folders

GROUPS, SAMPLES, STEPS, VOCABULARY = 4, 3, 2, 32


def score(row: Trajectory) -> Scored:
    """Scores that differ in a group, and by far between groups."""
    return Scored(value=float(int(row.tokens.sum()) % 5) * (1 + row.group % 3))


def policy() -> Policy:
    """A random Llama of two layers."""
    return Policy(llama(vocab_size=VOCABULARY), precision=Precision.FP32)


def trained(term: Term, parts: int, folder: Path, *, advantage: str = "grpo") -> dict[str, Tensor]:
    """Weights after two batches of four optimizer steps, each batch taken in so many parts."""
    model, store, tokenizer = policy(), MemoryRowStore(), SimulatedTokenizer(VOCABULARY)
    engine = build(
        Config(learning_rate=1e-2),
        policy=model,
        store=store,
        tokenizer=tokenizer,
        temperature=1.0,
        total_steps=GROUPS * STEPS,
        seed=4,
    )
    rollout = SimulatedRollout(
        lambda request: Script(length=2 + request.seed % 9, seconds=1.0 + request.seed % 4)
    )
    agent = SingleTurn(
        rollout=rollout, tokenizer=tokenizer, sampling=Sampling(max_new_tokens=16), seed=0
    )
    player = Player(agent, SimulatedReward(score), policy=RetryPolicy(), give_up_after=9)
    gate = open_gate(plan(groups=GROUPS, max_staleness=0.0))
    objective = Objective(terms=(term,), proximal=Proximal.BEHAVIOUR)
    trainer = Trainer(
        Schedule(steps=STEPS, parts=parts, evaluate_first=False, evaluate_last=False),
        rollouts=Rollouts(SimulatedPrompts(9), player, gate, samples=SAMPLES),
        learner=Learner(
            LearningSettings(updates=GROUPS // parts),
            roles={POLICY: Role(engine=engine, objective=objective)},
            store=store,
            recipe=Recipe(estimators=(estimator(advantage),)),
        ),
        rollout=rollout,
        transfer=SharedTransfer(rollout),
        checkpoints=Folders(Path(tempfile.mkdtemp(dir=folder))),
        tracker=SimulatedTracker(),
    )
    report = run(trainer.run())
    assert report.finished
    return {name: p.detach().clone() for name, p in model.module.named_parameters()}


TERMS = {
    "token-mean": Term(name="policy", loss=Loss(function=ppo), mode=Mode.TOKEN_MEAN),
    "a mean a sequence": Term(
        name="policy", loss=Loss(function=ppo), mode=Mode.SEQ_MEAN_TOKEN_MEAN
    ),
    "a constant": Term(
        name="policy", loss=Loss(function=ppo), mode=Mode.SEQ_MEAN_TOKEN_SUM_NORM, constant=16.0
    ),
    "cispo": Term(name="policy", loss=Loss(function=cispo), mode=Mode.TOKEN_MEAN),
    "gspo": Term(
        name="policy",
        loss=Loss(function=gspo, unit=Unit.SEQUENCE),
        mode=Mode.SEQ_MEAN_TOKEN_MEAN,
    ),
}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_parts_of_a_batch_give_the_weights_of_the_whole(term: Term, tmp_path: Path) -> None:
    """A1: an optimizer step divides by the counts of its own groups, which are known when they
    are there. In 1, 2 and 4 parts, fp32, on-policy: equal bit for bit."""
    whole = trained(term, 1, tmp_path)
    start = {name: p.detach() for name, p in policy().module.named_parameters()}
    assert any(not torch.equal(start[name], tensor) for name, tensor in whole.items())
    for parts in (2, 4):
        part_by_part = trained(term, parts, tmp_path)
        assert all(torch.equal(whole[name], part_by_part[name]) for name in whole)


def test_an_estimator_that_compares_all_groups_gives_other_weights(tmp_path: Path) -> None:
    """The comparison can fail: what is whitened over the batch is refused for this."""
    term, name = TERMS["token-mean"], "reinforce_plus_plus_baseline"
    whole = trained(term, 1, tmp_path, advantage=name)
    parts = trained(term, 4, tmp_path, advantage=name)
    assert any(not torch.equal(whole[key], parts[key]) for key in whole)
