"""Columns that an engine fills: log-probs, entropy, the reference's, an estimator's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.contract.training.bench import PPO, Bench, rows_in, run, spread, train
from torch.testing import assert_close

from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported, WrongBatch
from hexpo.domain.estimators import Estimator


def test_scores_are_those_of_the_weights_and_stand_at_their_tokens(
    make: Callable[..., Bench],
) -> None:
    """C1: `old` and `entropy` at the sampling temperature, 1e-5 of the plain way; 0 elsewhere."""
    bench = make()
    rows = rows_in(bench.store)
    order = torch.tensor([5, 0, 3])
    run(bench.engine.score(rows.select(order), ("old", "entropy")))
    found = bench.store.get(rows.ids[order], ("token", "action", "old", "entropy"))
    start = 0
    for length in rows.lengths[order].tolist():
        row = found[start : start + length]
        start += length
        logp = torch.log_softmax(bench.logits(row["token"])[:-1] / 0.8, -1)
        plain = logp.gather(1, row["token"][1:, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        action = row["action"][1:]
        assert_close(row["old"][1:], torch.where(action, plain, 0.0), rtol=0, atol=1e-5)
        assert_close(row["entropy"][1:], torch.where(action, entropy, 0.0), rtol=0, atol=1e-5)


def test_the_reference_is_the_model_before_training(make: Callable[..., Bench]) -> None:
    """Its scores equal the first `old`, and training moves only the policy."""
    bench = make()
    rows = rows_in(bench.store)
    run(bench.engine.score(rows, ("old",)))
    train(bench, rows, PPO)
    run(bench.engine.view("reference").score(rows, ("reference",)))
    run(bench.engine.score(rows, ("entropy",)))
    found = bench.store.get(rows.ids, ("old", "reference"))
    assert_close(found["reference"], found["old"], rtol=0, atol=1e-5)
    with pytest.raises(WrongBatch, match="old"):
        run(bench.engine.score(rows, ("old",)))
    later = rows_in(bench.store, first_id=200)
    run(bench.engine.score(later, ("old",)))
    moved = bench.store.get(later.ids, ("old",))["old"]
    assert (moved - found["old"]).abs().max() > 1e-4


def test_columns_and_views_that_nobody_makes_are_refused(make: Callable[..., Bench]) -> None:
    """The message names them; declared views work."""
    bench = make()
    rows = rows_in(bench.store)
    with pytest.raises(Unsupported, match="value"):
        run(bench.engine.score(rows, ("value",)))
    with pytest.raises(Unsupported, match="teacher"):
        bench.engine.view("teacher")
    assert bench.engine.capabilities.views == {"reference"}


def test_a_token_estimator_runs_over_all_rows_and_its_columns_are_used(
    make: Callable[..., Bench],
) -> None:
    """What `compute` wrote is what the loss reads, when the rows bring no advantage themselves."""
    bench, twin = make(), make()
    rows = rows_in(bench.store)
    bare = Sequences.of({n: rows[n] for n in rows.table.keys() if n != "advantage"})
    run(bench.engine.compute(bare, Estimator(function=spread, options={"scale": 0.5})))
    found = bench.store.get(rows.ids, ("advantage", "reward"))
    trained = torch.repeat_interleave(rows["trained"], rows.lengths)
    assert_close(found["advantage"], 0.5 * (found["reward"] + trained))
    train(bench, bare, PPO)
    train(twin, rows_in(twin.store), PPO)
    assert any((a - twin.weights()[n]).abs().max() > 1e-4 for n, a in bench.weights().items())
