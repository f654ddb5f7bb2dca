"""Token baselines: against plain loops, and at the ends of a group."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.advantages import optimal_token_baseline, tir_optimal_token_baseline
from hexpo.domain.batch import Batch
from hexpo.domain.errors import WrongValue
from hexpo.entrypoints.testing.strategies import batches


def _columns(batch: Batch) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(5)
    names = ("reward", "old", "behaviour", "action")
    return {
        **{f"{name}_T": batch.tokens[name] for name in names},
        "squares_T": torch.rand(len(batch.owner), generator=noise),
        "owner_T": batch.owner,
        "scored_S": batch.sequences["scored"],
        "group_S": batch.sequences["group"] % 2,
    }


def _plain(columns: dict[str, Tensor], *, compact: bool, bound: float | None) -> Tensor:
    """The formula, row by row and place by place, in float64."""
    rows: dict[int, list[tuple[int, int, float, float]]] = {}
    for row, scored in enumerate(columns["scored_S"].tolist()):
        tokens = [
            token
            for token in (columns["owner_T"] == row).nonzero().flatten().tolist()
            if scored and columns["action_T"][token]
        ]
        running, steps = 0.0, []
        for number, token in enumerate(tokens):
            old = float(columns["old_T"][token])
            rho = 1.0
            if bound is not None:
                behaviour = torch.tensor(old - float(columns["behaviour_T"][token]))
                rho = min(float(behaviour.exp()), bound)
            weight = 1 - 2 * float(torch.tensor(old).exp()) + float(columns["squares_T"][token])
            running += rho**2 * weight
            to_go = sum(float(columns["reward_T"][later]) for later in tokens[number:])
            steps.append((token, number if compact else token - tokens[0], running, to_go))
        rows[row] = steps
    out = torch.zeros(len(columns["owner_T"]), dtype=torch.float64)
    for row, steps in rows.items():
        same = [
            other
            for other in rows
            if columns["group_S"][other] == columns["group_S"][row] and columns["scored_S"][other]
        ]
        if len(same) < 2:
            continue
        counts = sorted((len(rows[other]) for other in same), reverse=True)
        for token, place, _, to_go in steps:
            met = [(w, g) for o in same for _, at, w, g in rows[o] if at == place]
            baseline = sum(w * g for w, g in met) / (sum(w for w, _ in met) + 1e-8)
            if len(steps) > counts[1] and place >= counts[1]:
                baseline = 0.0
            out[token] = to_go - baseline
    return out


@pytest.mark.parametrize("bound", [None, 1.2])
@pytest.mark.parametrize("compact", [False, True])
@settings(max_examples=40, deadline=None)
@given(batch=batches(longest=12))
def test_a_token_baseline_equals_the_plain_formula(
    batch: Batch, compact: bool, bound: float | None
) -> None:
    """Y1, Y5, B7: ragged rows, tool tokens, unscored rows, groups of one."""
    columns = _columns(batch)
    function = tir_optimal_token_baseline if compact else optimal_token_baseline
    advantage_T = function(**columns, truncation=bound)["advantage"].double()
    expected_T = _plain(columns, compact=compact, bound=bound)
    assert_close(advantage_T, expected_T, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(batch=batches(), junk=st.sampled_from((float("nan"), float("inf"))))
def test_what_stands_at_other_tokens_has_no_effect(batch: Batch, junk: float) -> None:
    """A3, B5."""
    columns = _columns(batch)
    live_T = columns["action_T"] & columns["scored_S"][columns["owner_T"]]
    names = ("reward_T", "old_T", "behaviour_T", "squares_T")
    spoiled = {**columns, **{name: columns[name].masked_fill(~live_T, junk) for name in names}}
    for function in (optimal_token_baseline, tir_optimal_token_baseline):
        before = function(**columns, truncation=2.0)["advantage"]
        assert torch.equal(function(**spoiled, truncation=2.0)["advantage"], before)


def test_only_the_longest_answers_tail_has_no_baseline() -> None:
    """Y1: in a tie for the longest nobody's tail is bare."""
    columns = {
        "reward_T": torch.tensor([0, 0, 1.0, 0, 0, 1.0, 1.0]),
        "old_T": torch.full((7,), 0.25).log(),
        "behaviour_T": torch.zeros(7),
        "squares_T": torch.full((7,), 0.25),
        "action_T": torch.ones(7, dtype=torch.bool),
        "owner_T": torch.tensor([0, 0, 0, 1, 1, 1, 2]),
        "scored_S": torch.ones(3, dtype=torch.bool),
        "group_S": torch.zeros(3, dtype=torch.int64),
    }
    tie = optimal_token_baseline(**columns)["advantage"]
    assert_close(tie, torch.zeros(7), rtol=0, atol=1e-6)
    columns["action_T"][5] = False
    columns["reward_T"][4] = 1.0
    bare = optimal_token_baseline(**columns)["advantage"]
    assert bare.tolist() == pytest.approx([0, 0, 1, 0, 0, 0, 0], abs=1e-6)


def test_a_bound_that_is_not_above_0_is_refused(golden) -> None:  # type: ignore[no-untyped-def]
    """M4."""
    with pytest.raises(WrongValue, match="truncation"):
        golden.of(optimal_token_baseline, truncation=0.0)
