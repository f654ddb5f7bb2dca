"""What ranks write beside rows, and how rows reach them."""

from __future__ import annotations

import pickle

from tests.integration.ranks.bench import PPO, Twins, rows, train
from torch.testing import assert_close

from hexpo.adapters.stores import mapped
from hexpo.adapters.training.host.order import laid_out
from hexpo.domain.advantages.gae import gae
from hexpo.domain.estimators import Estimator


def test_a_team_of_ranks_scores_what_one_process_scores(team: Twins) -> None:
    """C1: log-probs, entropy and squares from a cut head, and those of the reference."""
    sequences = team.put(seed=9)
    train(team, PPO, sequences)
    later = team.put(seed=10, without="old")
    bare = team.put(seed=31, without="reference")
    for engine in (team.ranks, team.one):
        team.run(engine.score(later, ("old", "entropy", "squares")))
        team.run(engine.view("reference").score(bare, ("reference",)))
    for each, name in ((later, "old"), (later, "entropy"), (later, "squares"), (bare, "reference")):
        ours, theirs = (store.get(each.ids, [name])[name] for store in team.stores)
        assert_close(ours, theirs, rtol=0, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")
        assert ours.abs().max() > 0
    for each in (sequences, later, bare):
        team.drop(each)


def test_ranks_write_the_columns_of_their_own_rows(two: Twins) -> None:
    """C1: `entropy`, `squares` and the reference view, in the rows' own token order."""
    sequences = two.put(seed=9)
    train(two, PPO, sequences)
    later = two.put(seed=10)
    for engine in (two.ranks, two.one):
        two.run(engine.score(later, ("entropy", "squares")))
    for name in ("entropy", "squares"):
        ours, theirs = (store.get(later.ids, [name])[name] for store in two.stores)
        assert_close(ours, theirs, rtol=0, atol=2e-5)
        assert ours.abs().max() > 0
    for each in (sequences, later):
        two.drop(each)


def test_a_token_estimator_runs_where_the_rows_lie(two: Twins) -> None:
    """X4: statistics span all rows, whatever rank trains them."""
    sequences = two.put(seed=11, without="return")
    bare = sequences.without("advantage")
    estimator = Estimator(function=gae, options={"gamma": 1.0, "lam": 0.95})
    for engine in (two.ranks, two.one):
        two.run(engine.compute(bare, estimator))
    ours, theirs = (store.get(bare.ids, ["advantage"])["advantage"] for store in two.stores)
    assert_close(ours, theirs)
    assert ours.abs().max() > 0
    two.drop(sequences)


def test_an_order_and_a_store_are_small_on_the_way() -> None:
    """X4: rows travel by id, whatever they hold."""
    store = mapped.build()
    batch = rows(50, [400] * 64)
    store.put(batch)
    assert len(pickle.dumps(store)) < 3000
    assert len(laid_out(PPO.weigh(batch.sequences), [32, 32], {"weights"}, PPO)) < 12000
    store.close()
