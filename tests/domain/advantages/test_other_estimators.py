"""Baselines that do not come from a group, reward components, and teachers."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.testing import assert_close

from hexpo.domain.advantages import (
    Baselines,
    distillation,
    gdpo,
    rae,
    remax,
    task_and_distillation,
)
from hexpo.domain.errors import WrongValue


def test_remax_needs_both_outcomes() -> None:
    """B7: a greedy answer without a score leaves nothing to compare with."""
    advantage_S = remax(
        score_S=torch.tensor([1.0, 1.0, float("nan")]).double(),
        scored_S=torch.tensor([True, True, False]),
        greedy_S=torch.tensor([0.25, float("nan"), 0.5]).double(),
    )
    assert torch.equal(advantage_S, torch.tensor([0.75, 0.0, 0.0]))


def test_a_missing_component_is_out_of_its_statistics_only() -> None:
    """K4, B7: the other component still speaks."""
    full = gdpo(
        components_S=torch.tensor([[1.0], [0.0], [0.5]]).double(),
        scored_S=torch.ones(3, dtype=torch.bool),
        group_S=torch.zeros(3, dtype=torch.int64),
        actions_S=torch.tensor([1, 2, 3]),
    )
    nan = float("nan")
    sparse = gdpo(
        components_S=torch.tensor([[1.0, nan], [0.0, nan], [0.5, 3.0]]).double(),
        scored_S=torch.ones(3, dtype=torch.bool),
        group_S=torch.zeros(3, dtype=torch.int64),
        actions_S=torch.tensor([1, 2, 3]),
    )
    assert torch.equal(full, sparse)
    with pytest.raises(WrongValue, match="1 weights for 2"):
        gdpo(
            components_S=torch.zeros(2, 2),
            scored_S=torch.ones(2, dtype=torch.bool),
            group_S=torch.zeros(2, dtype=torch.int64),
            actions_S=torch.ones(2, dtype=torch.int64),
            weights=[1.0],
        )


def test_a_moving_baseline_moves_after_use_and_for_its_role_only() -> None:
    """b <- decay b + (1 - decay) R, from 0."""
    columns = {
        "score_S": torch.tensor([1.0, 8.0]).double(),
        "scored_S": torch.tensor([True, True]),
        "role_S": torch.tensor([4, 7]),
    }
    assert rae(**columns).tolist() == [1.0, 8.0]
    moved = Baselines().after(**columns, decay=0.75)
    assert moved.values == {4: 0.25, 7: 2.0}
    assert rae(**columns, baselines=moved).tolist() == [0.75, 6.0]
    again = moved.after(
        score_S=torch.tensor([2.0, 5.0]).double(),
        scored_S=torch.tensor([True, False]),
        role_S=torch.tensor([4, 7]),
        decay=0.75,
    )
    assert again.values == {4: 0.75 * 0.25 + 0.25 * 2.0, 7: 2.0}
    assert pickle.loads(pickle.dumps(again)).values == again.values


def test_rows_of_one_step_move_a_baseline_in_no_order() -> None:
    """B8: two rows move it as far as two updates by their mean."""
    score_S, scored_S = torch.tensor([1.0, 0.0]).double(), torch.ones(2, dtype=torch.bool)
    role_S = torch.zeros(2, dtype=torch.int64)
    one = Baselines().after(score_S=score_S, scored_S=scored_S, role_S=role_S, decay=0.5)
    other = Baselines().after(score_S=score_S.flip(0), scored_S=scored_S, role_S=role_S, decay=0.5)
    assert one.values == other.values == {0: pytest.approx(0.375)}


def test_distillation_is_the_log_ratio_to_the_teacher_at_action_tokens() -> None:
    """A token that the teacher did not score gets 0; so does what is no action."""
    nan = float("nan")
    columns = {
        "teacher_T": torch.tensor([-1.0, nan, -0.5, -9.0]),
        "old_T": torch.tensor([-2.0, -1.0, nan, -3.0]),
        "action_T": torch.tensor([True, True, False, True]),
    }
    assert distillation(**columns)["advantage"].tolist() == [1.0, 0.0, 0.0, -6.0]
    both = task_and_distillation(
        **columns,
        advantage_S=torch.tensor([0.5, -1.0]),
        owner_T=torch.tensor([0, 0, 1, 1]),
        coefficient=0.25,
    )
    assert_close(both["advantage"], torch.tensor([0.75, 0.5, 0.0, -2.5]))
