"""Which tokens are too far from the sampler."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hexpo.domain.correction.rejection import Divergence, Over, rejection, veto
from hexpo.domain.errors import WrongValue

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden-vectors.json").read_text())[
    "rollout_correction"
]
MASK = torch.tensor(GOLDEN["mask"]).bool()
COLUMNS: dict[str, Any] = {
    "old_T": torch.tensor(GOLDEN["train"])[MASK],
    "behaviour_T": torch.tensor(GOLDEN["rollout"])[MASK],
    "owner_T": torch.tensor([[0] * 3, [1] * 3])[MASK],
}
CASES: list[tuple[str, list[dict[str, Any]]]] = [
    ("token_k1 0.5_2.0", [{"low": 0.5, "high": 2.0}]),
    ("token_k1 2.0", [{"high": 2.0}]),
    ("token_k2 0.5", [{"divergence": "k2", "high": 0.5}]),
    ("token_k3 0.3", [{"divergence": "k3", "high": 0.3}]),
    ("seq_sum_k1 0.5_2.0", [{"over": "sum", "low": 0.5, "high": 2.0}]),
    ("seq_mean_k1 0.8_1.25", [{"over": "mean", "low": 0.8, "high": 1.25}]),
    ("seq_mean_k3 0.2", [{"divergence": "k3", "over": "mean", "high": 0.2}]),
    ("seq_max_k3 0.5", [{"divergence": "k3", "over": "max", "high": 0.5}]),
    (
        "token_k1,seq_max_k2 0.5_2.0,1.0",
        [{"low": 0.5, "high": 2.0}, {"divergence": "k2", "over": "max", "high": 1.0}],
    ),
]


@pytest.mark.parametrize(("name", "masks"), CASES)
def test_rejection_agrees_with_the_oracle(name: str, masks: list[dict[str, Any]]) -> None:
    """Golden vectors; several masks are and-ed."""
    keep_T = torch.stack([rejection(**COLUMNS, **options) for options in masks]).all(0)
    assert keep_T.tolist() == torch.tensor(GOLDEN[f"RS {name}"]).bool()[MASK].tolist()


@pytest.mark.parametrize("divergence", Divergence)
@pytest.mark.parametrize("over", Over)
def test_on_policy_nothing_is_rejected(divergence: Divergence, over: Over) -> None:
    """C4."""
    same = {**COLUMNS, "old_T": COLUMNS["behaviour_T"]}
    assert rejection(**same, divergence=divergence, over=over, high=1.001).all()


def test_the_largest_of_a_row_takes_the_whole_row_and_no_other() -> None:
    """Y1: for k1 both sides count."""
    columns: dict[str, Any] = {
        "old_T": torch.tensor([0.0, 0.0, -1.0, 0.0, 0.0]),
        "behaviour_T": torch.tensor([0.0, 0.1, 0.0, 0.0, -0.2]),
        "owner_T": torch.tensor([0, 0, 1, 1, 2]),
    }
    kept_T = rejection(**columns, over=Over.MAX, high=2.0)
    assert kept_T.tolist() == [True, True, False, False, True]
    assert rejection(**columns, high=2.0).tolist() == [True, True, False, True, True]


def test_one_hopeless_token_vetoes_its_row() -> None:
    """algorithms.md, veto: only the side of tokens that training would hardly sample."""
    columns: dict[str, Any] = {
        "old_T": torch.tensor([-12.0, -0.1, -0.1, -0.1]),
        "behaviour_T": torch.tensor([-0.1, -0.1, -12.0, -0.1]),
        "owner_T": torch.tensor([0, 0, 1, 1]),
    }
    assert veto(**columns).tolist() == [False, False, True, True]
    assert veto(**columns, bound=math.exp(-12.0)).all()
    agreed = columns | {"old_T": columns["behaviour_T"]}
    assert veto(**agreed, bound=1.0).all()  # a ratio that is the bound is not below it


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"high": 0.9}, "high"),
        ({"low": 1.2}, "low"),
        ({"divergence": "k2", "high": 0.0}, "high"),
        ({"divergence": "k3", "low": 0.1}, "low"),
        ({"divergence": "k4"}, "k4"),
        ({"over": "median"}, "median"),
    ],
)
def test_meaningless_bounds_are_refused(options: dict[str, Any], named: str) -> None:
    """M4."""
    with pytest.raises(WrongValue, match=named):
        rejection(**COLUMNS, **options)


def test_no_token_is_ordinary() -> None:
    """An empty micro-batch is legal."""
    empty = {name: column[:0] for name, column in COLUMNS.items()}
    for over in Over:
        assert rejection(**empty, over=over).tolist() == []
    assert veto(**empty).tolist() == []
