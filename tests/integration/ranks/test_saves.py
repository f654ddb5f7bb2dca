"""Saves of any number of ranks, and what ranks send."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.integration.ranks.bench import PPO, Twins, train

from hexpo.adapters.transfer.disk import build_receiver
from hexpo.application.ports.transfer import Update


def test_a_save_of_a_team_goes_on_in_one_process_and_back(team: Twins, tmp_path: Path) -> None:
    """H1, H8: parts of both axes come together, and apart again."""
    sequences = team.put(seed=14)
    train(team, PPO, sequences)
    team.run(team.ranks.save(tmp_path / "team"))
    team.run(team.one.load(tmp_path / "team"))
    ours, theirs = team.weights()
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    team.run(team.one.save(tmp_path / "one"))
    team.reset()
    team.run(team.ranks.load(tmp_path / "one"))
    again, _ = team.weights()
    assert all(torch.equal(again[name], weight) for name, weight in theirs.items())
    team.run(team.one.load(tmp_path / "one"))
    train(team, PPO, sequences)
    team.drop(sequences)
    team.require_equal()


def test_a_save_of_two_ranks_goes_on_in_one_process_and_back(two: Twins, tmp_path: Path) -> None:
    """H1, H8: any number of ranks reads what another number wrote, moments and counts included."""
    sequences = two.put(seed=14)
    train(two, PPO, sequences)
    two.run(two.ranks.publish())
    two.run(two.ranks.save(tmp_path / "two"))
    two.run(two.one.load(tmp_path / "two"))
    assert two.one.version == 1
    two.run(two.one.save(tmp_path / "one"))
    for kind in ("weights", "moments"):
        parts = [
            load_file(tmp_path / "two" / f"{kind}-0000{n}-of-00002.safetensors") for n in (1, 2)
        ]
        for name, whole in load_file(tmp_path / "one" / f"{kind}.safetensors").items():
            pieces = [part[name] for part in parts]
            joined = torch.cat(pieces) if whole.dim() else pieces[0]
            assert torch.equal(joined, whole), name
    two.reset()
    two.run(two.ranks.load(tmp_path / "one"))
    ours, theirs = two.weights()
    two.run(two.one.load(tmp_path / "one"))
    assert all(torch.equal(ours[n], w) for n, w in two.weights()[1].items())
    train(two, PPO, sequences)
    two.drop(sequences)
    two.require_equal()
    assert theirs.keys() == ours.keys()


def test_the_stream_that_ranks_send_is_what_one_process_exports(two: Twins, tmp_path: Path) -> None:
    """G2, O14: every weight under its exported name, a tied head once, bit for bit."""
    sequences = two.put(seed=15)
    train(two, PPO, sequences)
    two.drop(sequences)
    address = {"folder": str(tmp_path), "keep": 1, "bucket": 2**20}
    update = Update(version=3, address=address)
    digest = two.run(two.ranks.send(update))
    got = {name: tensor.clone() for name, tensor in build_receiver(reader="test")(update)}
    exported, _ = two.weights()
    assert "lm_head.weight" not in got
    assert digest.tensors == len(got)
    for name, tensor in got.items():
        assert torch.equal(tensor, exported[name]), name
    two.require_equal()
