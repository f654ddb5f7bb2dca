"""What ranks train is what one process trains: every loss, however rows and weights are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.ranks.bench import PPO, Loop, Twins, rows, term, train, twins_of
from torch.testing import assert_close

from hexpo.adapters.models.lora import Lora
from hexpo.adapters.training.host.order import laid_out
from hexpo.application.ports.cluster import Cluster
from hexpo.domain.aggregate import Mode
from hexpo.domain.batch import Batch
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.catalogue import LOSSES
from hexpo.domain.losses.value import value
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.domain.preference.catalogue import PREFERENCES


@pytest.mark.parametrize("name", LOSSES)
def test_every_policy_loss_trains_over_two_ranks_as_in_one_process(two: Twins, name: str) -> None:
    """A1, N1: three steps of ragged packed rows in many micro-batches, 1e-5 in weights and losses;
    one of the calls cannot give both ranks as much."""
    objective = term(name, LOSSES[name])
    for step in range(3):
        sequences = two.put(seed=1 + step)
        train(two, objective, sequences)
        two.drop(sequences)
    two.require_equal()


@pytest.mark.parametrize("name", LOSSES)
def test_every_policy_loss_trains_by_a_team_of_ranks_as_in_one_process(
    team: Twins, name: str
) -> None:
    """A1: weights cut, or tokens cut, in packed rows and many micro-batches; 1e-5."""
    objective = term(name, LOSSES[name])
    sequences = team.put(seed=1)
    train(team, objective, sequences)
    team.drop(sequences)
    team.require_equal()


@pytest.mark.parametrize(
    ("mode", "constant", "wanted"),
    [
        (Mode.TOKEN_MEAN, None, 1.5),
        (Mode.SEQ_MEAN_TOKEN_MEAN, None, 2.0),
        (Mode.SEQ_MEAN_TOKEN_SUM_NORM, 12.0, 0.5),
    ],
)
def test_a_row_on_each_of_two_ranks_gives_the_loss_of_the_whole_step(
    two: Twins, mode: Mode, constant: float | None, wanted: float
) -> None:
    """O01: losses [2, 4] on one rank, six times 1 on the other; gradients as in one process."""
    losses = torch.tensor([0, 0, 2, 4, 0, 0, 1, 1, 1, 1, 1, 1.0])
    made = rows(23, [4, 8])
    sequences = made.sequences.with_columns(trained=torch.tensor([2, 6]))
    kept = {name: made.columns[name] for name in ("token", "position", "action")}
    for store in two.stores:
        store.put(Batch.of(sequences, {**kept, "trained": made.columns["action"]}))
    two.run(two.one.score(sequences, ("old",)))
    now = two.stores[1].get(sequences.ids, ["old"])["old"]
    for store in two.stores:
        store.extend(sequences.ids, {"reference": now - losses})
    term = Term(name="kl", loss=kl_loss("k1"), mode=mode, constant=constant)
    objective = Objective(terms=(term,))
    for engine in (two.ranks, two.one):
        found = values(two.run(engine.accumulate(objective.weigh(sequences), objective)))
        assert found["loss/kl"] == pytest.approx(wanted, abs=1e-5)
        two.run(engine.step())
    two.drop(sequences)
    two.require_equal()


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_team_of_ranks_trains_pairs(team: Twins, name: str) -> None:
    """A6: the rows of a pair are where all rows are."""
    objective = term(name, PREFERENCES[name])
    sequences = team.put(seed=5)
    train(team, objective, sequences, cut=4)
    team.drop(sequences)
    team.require_equal(moved=1e-6)


@pytest.mark.parametrize("name", ["dpo", "simpo", "kto"])
def test_pairs_stay_on_one_rank(two: Twins, name: str) -> None:
    """A6: a pair's loss needs both rows."""
    objective = term(name, PREFERENCES[name])
    sequences = two.put(seed=5)
    train(two, objective, sequences, cut=4)
    two.drop(sequences)
    two.require_equal(moved=1e-6)


def test_one_row_over_two_ranks_trains(two: Twins) -> None:
    """O4, O23.3: the other rank adds a gradient of 0."""
    sequences = two.put(seed=6, lengths=[7, 5])
    train(two, PPO, sequences, cut=1)
    two.drop(sequences)
    two.require_equal()


def test_ranks_with_unequal_numbers_of_micro_batches_end_and_agree(two: Twins) -> None:
    """O23.2: rows 8, 8, 8 on one rank and 2, 2 on the other, with room for three rows of 8 in no
    micro-batch."""
    sequences = two.put(seed=7, lengths=[24, 24, 24, 4, 4])
    weighed = PPO.weigh(sequences)
    columns = {"weights", "advantage"}
    packed = laid_out(weighed, [3, 2], columns, PPO)
    found = two.run(two.ranks._ranks.all("accumulate", packed, 0, 0))
    assert [count for _, count in found] == [3, 3]
    two.run(two.ranks._ranks.all("finish", 0))
    two.run(two.one.accumulate(weighed, PPO))
    two.run(two.one.step())
    two.drop(sequences)
    two.require_equal()


@pytest.mark.parametrize("name", ["full", "full_top_k"])
def test_distributions_are_compared_over_two_ranks_as_in_one_process(two: Twins, name: str) -> None:
    """A1, S1: ids that the reference kept, and its whole distribution from the parts that ranks
    hold of it; in one call a rank has no row, and runs the reference with the other."""
    terms = (*PPO.terms, Term(name="kl", loss=kl_loss(name), coefficient=2.0))
    objective = Objective(terms=terms, proximal=Proximal.STORED)
    first = two.put(seed=21)
    train(two, PPO, first)
    sequences = two.put(seed=22)
    for engine in (two.ranks, two.one):
        kept = ("reference_topk", "reference_ids")
        two.run(engine.view("reference").score(sequences, kept))
    train(two, objective, sequences, cut=1)
    for each in (first, sequences):
        two.drop(each)
    two.require_equal()


@pytest.mark.slow
def test_a_critic_trains_over_two_ranks_as_in_one_process(
    loop: Loop, cluster: Cluster, model: Path, tmp_path: Path
) -> None:
    """A1: its head starts at 0, and lies on one rank."""
    twins = twins_of(
        loop, cluster, model, tmp_path, ranks=2, name="critic", value_head=True, reference=False
    )
    objective = Objective(terms=(Term(name="value", loss=Loss(function=value)),))
    for step in range(3):
        sequences = twins.put(seed=20 + step)
        train(twins, objective, sequences)
        twins.drop(sequences)
    later = twins.put(seed=30, without="value")
    for engine in (twins.ranks, twins.one):
        loop(engine.score(later, ("value",)))
    ours, theirs = (store.get(later.ids, ["value"])["value"] for store in twins.stores)
    assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert ours.abs().max() > 0
    loop(twins.ranks.close())
    loop(twins.one.close())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (1, {}),
        (2, {"lora": Lora(rank=4), "activation_checkpointing": True}),
        (2, {"reduce_late": True, "keep_gathered": True, "cpu_offload": True}),
    ],
    ids=["one rank", "adapters and recomputing", "late sums, whole layers, host memory"],
)
def test_every_way_to_hold_the_weights_trains_the_same(
    loop: Loop, cluster: Cluster, model: Path, tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    """A1: one rank, adapters, and each setting of memory; three steps."""
    name = f"way-{abs(hash(tuple(more)))}"
    twins = twins_of(loop, cluster, model, tmp_path, ranks=ranks, name=name, **more)
    for step in range(3):
        sequences = twins.put(seed=40 + step)
        train(twins, PPO, sequences)
        twins.drop(sequences)
    twins.require_equal()
    loop(twins.ranks.close())
    loop(twins.one.close())
