"""O01, O02, O06 and O07 where a unit test does not already prove them as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.objective import Loss, Objective, Proximal, Term
from hexpo.entrypoints.library import Run, build

SEQUENCE_RATIO = Objective(
    terms=(
        Term(
            name="policy",
            loss=Loss(
                function=gspo, unit=Unit.SEQUENCE, options={"clip_low": 1.0, "clip_high": 99.0}
            ),
            mode=Mode.SEQ_MEAN_TOKEN_MEAN,
        ),
    ),
    proximal=Proximal.STORED,
)


@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [1]], [[1], [0]]])
@pytest.mark.parametrize("slots", [1, 3])
def test_masked_slots_and_the_split_leave_a_sequence_ratio_alone(
    parts: list[list[int]], slots: int
) -> None:
    """O01: -0.222511, with masked slots of log-ratio 9 in row 1, in one part or two."""
    log_ratios = [[0.2, 0.4] + [9.0] * slots, [-0.1, -0.1, -0.1]]
    masks = [[True, True] + [False] * slots, [True, True, True]]
    step = SEQUENCE_RATIO.weigh(
        Sequences.of(
            {
                "id": torch.tensor([7, 8]),
                "group": torch.tensor([0, 1]),
                "length": torch.tensor([len(row) for row in log_ratios]),
                "trained": torch.tensor([2, 3]),
                "advantage": torch.tensor([1.0, -1.0]),
            }
        )
    )
    leaves = [torch.tensor(row, requires_grad=True) for row in log_ratios]
    total = 0.0
    for part in parts:
        policy_T = torch.cat([leaves[row] for row in part])
        owner_T = torch.cat(
            [torch.full((len(log_ratios[row]),), place) for place, row in enumerate(part)]
        )
        columns = {
            "policy": policy_T,
            "old": torch.zeros_like(policy_T),
            "owner": owner_T,
            "trained": torch.cat([torch.tensor(masks[row]) for row in part]),
        }
        loss, _ = SEQUENCE_RATIO.evaluate(columns, step.select(part))
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(-0.222511, abs=1e-5)
    first, second = (leaf.grad for leaf in leaves)
    assert first is not None
    assert second is not None
    assert first.tolist() == pytest.approx([-0.337465] * 2 + [0.0] * slots, abs=1e-5)
    assert second.tolist() == pytest.approx([0.150806] * 3, abs=1e-5)


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    """A copy of the policy's present weights."""
    policy = run.container.policy()
    return {name: p.detach().clone() for name, p in policy.module.named_parameters()}


def test_steps_without_a_token_to_train_change_nothing_are_counted_and_the_run_goes_on(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """O02, A4: every answer is cut and cut answers train nothing; not a non-finite step either."""
    tiny["data"]["train"]["options"]["limit"] = 2
    run = build(
        tiny, "run.steps=4", "algorithm.mask_cut=true", "rollout.sampling.min_new_tokens=8",
        "training.options.max_skipped_steps=1", folder=tmp_path / "run",
    )  # fmt: skip
    before = weights_of(run)
    report = run.train()
    assert report.finished
    assert [row["train/skipped_steps"] for row in report.history] == [1, 1, 1, 1]
    assert [row["tokens/trained"] for row in report.history] == [0, 0, 0, 0]
    assert [row["tokens/masked/cut"] for row in report.history] == [64, 64, 64, 64]
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(run).items())


def test_fresh_data_has_ratio_one_and_a_weight_of_zero_needs_no_reference(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    """O06 and C4: at each first update the ratio is exactly 1. O07.4: KL weight 0 runs."""
    run = build(
        tiny, "run.steps=2", "algorithm.kl.where=loss", "algorithm.kl.coefficient=0",
        folder=tmp_path / "run",
    )  # fmt: skip
    report = run.train()
    for row in report.history:
        assert row["policy/ratio"] == 1.0
        assert row["policy/approximate_kl"] == 0.0
        assert row["policy/clip_share"] == 0.0
        assert row["train/gradient_norm"] > 0
        assert "loss/kl" not in row
    assert "reference" not in run.container.columns()
    assert not run.container.training().capabilities.views
    with pytest.raises(Unsupported, match="no reference is kept"):
        run.container.training().view("reference")


@pytest.mark.parametrize("lora", [False, True])
def test_at_step_one_the_policy_is_its_reference(
    tiny: dict[str, Any], tmp_path: Path, lora: bool
) -> None:
    """C10: KL to the reference is 0 before the first update, and not after it."""
    options = ["training.options.lora={rank: 4}"] if lora else []
    run = build(
        tiny, "run.steps=2", "algorithm.kl.where=loss", "algorithm.kl.coefficient=0.1", *options,
        folder=tmp_path / "run",
    )  # fmt: skip
    first, second = run.train().history
    assert first["kl/kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl/kl"] > 1e-6
