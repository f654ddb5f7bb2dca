"""KL as a term of the objective."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from hexpo.domain.aggregate import Mode
from hexpo.domain.batch import Batch
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl import Target, kl_estimator, kl_loss, kl_measures
from hexpo.domain.objective import Objective, Term
from hexpo.entrypoints.testing.strategies import SplitBatch, split_batches

LOSSES = {
    "k1": kl_loss("k1"),
    "k3": kl_loss("k3"),
    "k2 to the behaviour": kl_loss("k2", target=Target.BEHAVIOUR),
    "k3 unbiased": kl_loss("k3", unbiased=True),
    "k1+ unbiased, sampled by old": kl_loss("k1+", unbiased=True, sampler="old"),
    "abs": kl_loss("abs"),
}


def _objective(name: str, mode: Mode = Mode.TOKEN_MEAN) -> Objective:
    from hexpo.domain.objective import Proximal

    term = Term(name="kl", loss=LOSSES[name], coefficient=0.5, mode=mode)
    return Objective(terms=(term,), proximal=Proximal.STORED)


def _loss(objective: Objective, part: Batch, weights: torch.Tensor, policy: torch.Tensor):  # type: ignore[no-untyped-def]
    columns = {**part.tokens, "policy": policy, "owner": part.owner}
    return objective.evaluate(columns, part.sequences.with_columns(weights=weights))


def _policy(batch: Batch) -> torch.Tensor:
    noise = torch.Generator().manual_seed(1)
    return -3 * torch.rand(len(batch.owner), generator=noise).double()


@pytest.mark.parametrize("mode", [Mode.TOKEN_MEAN, Mode.SEQ_MEAN_TOKEN_MEAN])
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(case=split_batches())
def test_no_split_changes_the_term_or_its_gradient(name: str, mode: Mode, case: SplitBatch) -> None:
    """A1, A6."""
    objective = _objective(name, mode)
    step = objective.weigh(case.batch.sequences)
    policy = _policy(case.batch)
    whole = policy.clone().requires_grad_()
    loss, _ = _loss(objective, case.batch, step["weights"], whole)
    pieces = policy.clone().requires_grad_()
    located = case.batch.with_tokens(position=torch.arange(len(policy)))
    total = policy.new_zeros(())
    for index in case.index:
        part = located.select(index)
        own = pieces[part.tokens["position"]]
        total = total + _loss(objective, part, step["weights"][index], own)[0]
    assert_close(total, loss, rtol=1e-6, atol=1e-6)
    if len(policy):
        (loss + 0 * whole.sum()).backward()
        (total + 0 * pieces.sum()).backward()
        assert_close(pieces.grad, whole.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(case=split_batches())
def test_what_stands_at_other_tokens_has_no_effect(name: str, case: SplitBatch) -> None:
    """A3: NaN outside the mask, in value and gradient."""
    objective, batch = _objective(name), case.batch
    weights = objective.weigh(batch.sequences)["weights"]
    other_T = ~batch.tokens["trained"]
    spoiled = batch.with_tokens(
        **{
            column: batch.tokens[column].masked_fill(other_T, torch.nan)
            for column in ("reference", "behaviour", "old")
        }
    )
    clean = _policy(batch).requires_grad_()
    dirty = _policy(batch).masked_fill(other_T, torch.nan).requires_grad_()
    loss, _ = _loss(objective, batch, weights, clean)
    spoiled_loss, metrics = _loss(objective, spoiled, weights, dirty)
    assert torch.equal(spoiled_loss, loss)
    assert all(measure.total == measure.total for measure in metrics.values())
    loss.backward()
    spoiled_loss.backward()
    assert torch.equal(dirty.grad, clean.grad)  # type: ignore[arg-type]
    assert torch.equal(clean.grad[other_T], torch.zeros(int(other_T.sum())).double())  # type: ignore[index]


def test_a_term_names_the_columns_of_its_target() -> None:
    """What nobody provides is refused before anything loads, so the names must be right."""
    assert kl_loss("k3").needs.tokens == ("policy", "reference")
    assert kl_loss("k2", target=Target.BEHAVIOUR).needs.tokens == ("policy", "behaviour")
    assert kl_loss("k3", target=Target.TEACHER, unbiased=True).needs.tokens == (
        "policy",
        "teacher",
        "behaviour",
    )
    assert kl_loss("k3", unbiased=True, sampler="old").needs.tokens == (
        "policy",
        "reference",
        "old",
    )
    both = kl_loss("k2", unbiased=True, target=Target.BEHAVIOUR)
    assert both.needs.tokens == ("policy", "behaviour")
    assert kl_loss("full", target=Target.TEACHER).needs.tokens == (
        "policy_logprobs",
        "teacher_logprobs",
    )
    with pytest.raises(WrongValue, match="did you mean teacher"):
        kl_loss("k3", target="techer")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_survives_pickle(name: str) -> None:
    """An objective travels to the ranks."""
    assert pickle.loads(pickle.dumps(LOSSES[name])).needs == LOSSES[name].needs


def test_capped_tokens_are_counted() -> None:
    """O07.3, C9: one of two."""
    measured = kl_measures(
        policy_T=torch.tensor([-100.5, -0.7]),
        reference_T=torch.tensor([-0.5, -0.7]),
        estimator=kl_estimator("k3"),
    )
    assert measured["kl_capped_share"].tolist() == [1.0, 0.0]
    assert measured["kl"].tolist() == [10.0, 0.0]
    assert "kl_capped_share" not in kl_measures(
        policy_T=torch.zeros(1), reference_T=torch.zeros(1), estimator=kl_estimator("k1")
    )
