"""What a researcher's estimator gives back is one number a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hexpo.domain.batch import Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.domain.estimators import Estimator

SCORES_S = torch.tensor([1.0, -0.5], dtype=torch.float64)
ROWS = Sequences.of({"id": torch.arange(2), "length": torch.tensor([3, 2]), "score": SCORES_S})


def whole(*, score_S: Tensor) -> Tensor:
    return score_S.mean()


def doubled(*, score_S: Tensor, times: float = 2.0) -> Tensor:
    return times * score_S


def test_a_number_for_the_whole_step_is_refused_with_the_estimators_name() -> None:
    """It would be broadcast, and train every row by the mean."""
    with pytest.raises(WrongBatch, match=r"estimator whole returned \(\) for 2 rows"):
        Estimator(function=whole).of_rows(ROWS)


def test_an_outcome_estimator_gets_its_columns_and_options() -> None:
    """A double score makes a single-precision advantage, row by row."""
    made = Estimator(function=doubled, options={"times": 3.0}).of_rows(ROWS)
    assert made.dtype is torch.float32
    assert made.tolist() == [3.0, -1.5]
