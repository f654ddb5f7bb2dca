"""Values and gradients against an independent implementation's golden vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.losses.catalogue import LOSSES
from hexpo.domain.masks.covariance import top_covariance
from hexpo.domain.metrics import values
from hexpo.domain.objective import Loss, Objective, Proximal, Term

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden-vectors.json").read_text())
FIXTURE = {name: torch.tensor(value) for name, value in GOLDEN["loss_fixture"].items()}
MASK = FIXTURE["mask"].bool()
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
GATE = {"gate_low": 0.2, "gate_high": 0.28}
ROW = Mode.SEQ_MEAN_TOKEN_MEAN
CASES: list[tuple[str, str, dict[str, Any], Mode]] = [
    ("vanilla", "ppo", {**CLIP, "dual_clip": 3.0}, Mode.TOKEN_MEAN),
    ("gspo", "gspo", CLIP, ROW),
    ("gspo", "gspo_token", CLIP, ROW),
    ("sapo", "sapo", {}, ROW),
    ("gpg", "gpg", {}, Mode.TOKEN_MEAN),
    ("gpg", "reinforce", {}, Mode.TOKEN_MEAN),
    ("kl_cov", "kl_cov", {"coefficient": 0.1}, Mode.TOKEN_MEAN),
    ("geo_mean", "geo_mean", CLIP, ROW),
    ("dro", "dro", {"beta": 0.05}, Mode.TOKEN_MEAN),
    ("cispo", "cispo", CLIP, Mode.TOKEN_MEAN),
    ("dppo_tv", "dppo_tv", GATE, Mode.TOKEN_MEAN),
    ("dppo_kl", "dppo_kl", GATE, Mode.TOKEN_MEAN),
]


def evaluate(
    name: str, options: dict[str, Any], mode: Mode
) -> tuple[float, Tensor, dict[str, float]]:
    """Loss, gradient (B, T) and metrics of the fixture, by way of the objective."""
    entry = LOSSES[name]
    assert entry.unit is not None
    loss = Loss(function=entry.function, options=options, unit=entry.unit, measures=entry.measures)
    objective = Objective(
        terms=(Term(name="policy", loss=loss, mode=mode),), proximal=Proximal.STORED
    )
    rows, width = MASK.shape
    policy = FIXTURE["log_prob"].clone().requires_grad_()
    old, advantage = FIXTURE["old_log_prob"], FIXTURE["advantages"]
    covariant = torch.zeros_like(MASK)
    covariant[MASK] = top_covariance(
        old_T=old[MASK], advantage_T=advantage[MASK], share=2 / int(MASK.sum())
    )
    columns = {
        "policy": policy.flatten(),
        "old": old.flatten(),
        "advantage": advantage.flatten(),
        "covariant": covariant.flatten(),
        "trained": MASK.flatten(),
        "owner": torch.arange(rows).repeat_interleave(width),
    }
    step = Sequences.of(
        {
            "id": torch.arange(rows),
            "group": torch.arange(rows),
            "length": torch.full((rows,), width),
            "trained": MASK.sum(1),
            "advantage": advantage[:, 0],
        }
    )
    value, metrics = objective.evaluate(columns, objective.weigh(step))
    value.backward()
    assert policy.grad is not None
    return value.item(), policy.grad, values(metrics)


@pytest.mark.parametrize(("golden", "name", "options", "mode"), CASES)
def test_losses_and_gradients_agree_with_the_oracle(
    golden: str, name: str, options: dict[str, Any], mode: Mode
) -> None:
    """Golden vectors, 1e-5; gspo, sapo and geo_mean with their papers' aggregation."""
    want = GOLDEN["policy_losses"][golden]
    value, gradient, metrics = evaluate(name, options, mode)
    assert value == pytest.approx(want["loss"], abs=1e-5)
    torch.testing.assert_close(gradient, torch.tensor(want["grad"]), rtol=0, atol=1e-5)
    if name in {"ppo", "dppo_tv", "dppo_kl", "cispo"}:
        share = want["metrics"]["actor/pg_clipfrac"]
        assert metrics["policy/clip_share"] == pytest.approx(share, abs=1e-5)
        assert metrics["policy/approximate_kl"] == pytest.approx(0.05, abs=1e-5)


def test_the_sequence_losses_refuse_a_token_mean() -> None:
    """A8: under token-mean gspo would be off the oracle (-0.135890 for -0.237807)."""
    for entry in LOSSES.values():
        assert entry.unit is not Unit.SEQUENCE or entry.default_mode is ROW
