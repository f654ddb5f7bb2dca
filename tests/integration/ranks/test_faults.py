"""What goes wrong on one rank is known to all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.integration.ranks.bench import PPO, Loop, Twins, ranks_of, rows, train

from hexpo.adapters.stores import mapped
from hexpo.application.ports.cluster import Cluster
from hexpo.domain.errors import EngineFailed, WrongBatch
from hexpo.domain.metrics import values


def test_a_team_skips_a_row_that_is_not_finite_and_goes_on(team: Twins) -> None:
    """O18, J1: all ranks of a team see the same row; it is named once."""
    sequences = team.put(seed=8)
    spoilt = sequences.with_columns(advantage=sequences["advantage"].clone())
    spoilt["advantage"][4] = float("nan")
    team.run(team.ranks.accumulate(PPO.weigh(spoilt), PPO))
    result = team.run(team.ranks.step())
    assert not result.applied
    assert result.cause.count("804") == 1
    train(team, PPO, sequences)
    team.drop(sequences)
    team.require_equal()


def test_a_row_that_is_not_finite_on_one_rank_skips_the_step_on_both(two: Twins) -> None:
    """O18, J1, J2: weights and moments as before, the sample is named, the next step is normal."""
    sequences = two.put(seed=8)
    train(two, PPO, sequences)
    before, _ = two.weights()
    spoilt = sequences.with_columns(advantage=sequences["advantage"].clone())
    spoilt["advantage"][4] = float("nan")
    for engine in (two.ranks, two.one):
        two.run(engine.accumulate(PPO.weigh(spoilt), PPO))
        result = two.run(engine.step())
        assert not result.applied
        assert "804" in result.cause
        assert "803" not in result.cause
        assert values(result.metrics) == {"train/skipped_steps": 1}
    after, _ = two.weights()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    train(two, PPO, sequences)
    two.drop(sequences)
    two.require_equal()


def test_what_one_rank_cannot_find_is_refused_by_all_and_the_engine_lives(two: Twins) -> None:
    """O5: the rank that lacks a row says which; no rank waits for another."""
    sequences = two.put(seed=12)
    two.stores[0].drop(sequences.ids[2:3])
    with pytest.raises(WrongBatch, match="1202"):
        two.run(two.ranks.accumulate(PPO.weigh(sequences), PPO))
    other = two.put(seed=13)
    train(two, PPO, other)
    two.drop(other)
    two.require_equal()


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_others_are_stopped(
    loop: Loop, cluster: Cluster, model: Path
) -> None:
    """O3, O5: the death is the cause, not what the other rank says of its connection."""
    store = mapped.build()
    engine = ranks_of(loop, cluster, model, store, ranks=2, name="doomed")
    batch = rows(16, [9, 8, 7, 6])
    store.put(batch)
    weighed = PPO.weigh(batch.sequences)
    loop(engine.accumulate(weighed, PPO))
    os.kill(engine._ranks._processes[1].pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(
            EngineFailed, match=r"doomed-1 (died|is gone).*SIGKILL|doomed-1.*SIGKILL"
        ):
            loop(engine.accumulate(weighed, PPO))
    deaths = [loop(process.death()) for process in engine._ranks._processes]
    assert len(deaths) == 2
    loop(engine.close())
    loop(engine.close())
    store.close()
