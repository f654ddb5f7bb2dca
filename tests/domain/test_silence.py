"""Rows whose gradient is surely nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.agreement import AGREEMENT
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.catalogue import Entry
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.catalogue import LOSSES
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.entrypoints.testing.strategies import batches

SILENT = [entry for entry in LOSSES.values() if entry.silent_at_zero_advantage]


def objective_of(entry: Entry, *terms: Term) -> Objective:
    loss = Loss(
        function=entry.function,
        unit=entry.unit or pytest.fail("a loss without a unit"),
        silent_at_zero_advantage=entry.silent_at_zero_advantage,
    )
    mode = entry.default_mode or Term(name="x", loss=loss).mode
    policy = Term(name="policy", loss=loss, mode=mode)
    return Objective(terms=(policy, *terms), proximal=Proximal.STORED)


def ragged() -> Batch:
    """Four rows of different lengths; all but the first token of each is trained."""
    length_S = torch.tensor([5, 3, 6, 2])
    trained_T = torch.cat([torch.arange(int(length)) > 0 for length in length_S])
    rows = {
        "id": torch.arange(4),
        "group": torch.tensor([0, 0, 1, 1]),
        "length": length_S,
        "trained": length_S - 1,
    }
    return Batch.of(Sequences.of(rows), {"trained": trained_T})


def gradient(objective: Objective, batch: Batch, seed: int) -> torch.Tensor:
    """(T,) the pull on each token's log-prob, where policy and old differ by a lot."""
    noise = torch.Generator().manual_seed(seed)

    def some() -> torch.Tensor:
        return -20 * torch.rand(len(batch.owner), generator=noise, dtype=torch.float64)

    policy_T = some().requires_grad_()
    columns = {
        **{name: some() for name in ("old", "behaviour", "reference")},
        "trained": batch.tokens["trained"],
        "owner": batch.owner,
        "policy": policy_T,
        "entropy": some().abs(),
        "advantage": batch.column("advantage").double(),
        "covariant": torch.rand(len(batch.owner), generator=noise) > 0.5,
    }
    loss, _ = objective.evaluate(columns, objective.weigh(batch.sequences))
    if loss.requires_grad:
        loss.backward()
    return torch.zeros_like(policy_T) if policy_T.grad is None else policy_T.grad


def some_silent(batch: Batch, seed: int) -> Batch:
    """The batch with an advantage of 0 for about half of its rows."""
    noise = torch.Generator().manual_seed(seed)
    advantage_S = torch.randn(len(batch), generator=noise)
    advantage_S[torch.rand(len(batch), generator=noise) > 0.5] = 0
    return Batch(batch.sequences.with_columns(advantage=advantage_S), batch.tokens)


@pytest.mark.parametrize("entry", SILENT, ids=lambda entry: entry.name)
@given(batch=batches(max_rows=6), seed=st.integers(0, 999))
def test_a_loss_that_says_so_pulls_at_nothing_without_an_advantage(
    entry: Entry, batch: Batch, seed: int
) -> None:
    """A1: exactly 0, however far the policy has moved, so that the row need not be run."""
    batch, objective = some_silent(batch, seed), objective_of(entry, AGREEMENT)
    silent_S = objective.silent(batch.sequences)
    assert silent_S.equal(batch.sequences["advantage"] == 0)
    assert gradient(objective, batch, seed)[silent_S[batch.owner]].eq(0).all()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {entry.name for entry in SILENT}))
def test_a_loss_that_does_not_say_so_pulls_without_an_advantage(name: str) -> None:
    """The flag is exact: dro and kl_cov draw to the old policy whatever the advantage is."""
    batch = ragged()
    batch = Batch(batch.sequences.with_columns(advantage=torch.zeros(len(batch))), batch.tokens)
    objective = objective_of(LOSSES[name])
    assert not objective.silent(batch.sequences).any()
    assert gradient(objective, batch, 1).ne(0).any()


def test_a_term_that_pulls_everywhere_makes_no_row_silent() -> None:
    """A KL in the loss acts on rows of every advantage; one that is only measured does not."""
    rows = some_silent(ragged(), 3).sequences
    kl = Term(name="kl", loss=kl_loss("k3"))
    measured = Term(name="kl", loss=kl_loss("k3"), coefficient=0.0)
    assert not objective_of(LOSSES["ppo"], kl).silent(rows).any()
    assert objective_of(LOSSES["ppo"], measured).silent(rows).any()
    assert not objective_of(LOSSES["ppo"]).silent(rows.without("advantage")).any()


def test_a_term_without_a_coefficient_is_measured_and_never_called() -> None:
    """C1: no value, no gradient, no metric of a loss."""

    def never(*, policy_T: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    def measures(*, policy_T: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"seen": torch.ones_like(policy_T)}

    batch = ragged()
    loss = Loss(function=never, measures=measures)
    objective = Objective(terms=(Term(name="quiet", loss=loss, coefficient=0.0),))
    columns = {
        "trained": batch.tokens["trained"],
        "owner": batch.owner,
        "policy": torch.zeros(len(batch.owner), requires_grad=True),
    }
    value, metrics = objective.evaluate(columns, objective.weigh(batch.sequences))
    assert float(value) == 0
    assert set(metrics) == {"quiet/seen"}
    assert metrics["quiet/seen"].value == 1.0
