"""Functions that read other columns than those they are written for."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from hexpo.domain.errors import WrongValue
from hexpo.domain.reading import Reading
from hexpo.domain.signature import needs_of


def gap(*, policy_T: Tensor, reference_T: Tensor, score_S: Tensor, scale: float = 2.0) -> Tensor:
    """What a researcher writes."""
    return scale * (policy_T - reference_T) + score_S


COLUMNS = {"policy_T": torch.tensor([3.0]), "score_S": torch.tensor([10.0])}


def test_the_other_column_is_read_and_asked_for() -> None:
    """A missing column is refused by its own name."""
    reading = pickle.loads(pickle.dumps(Reading(gap, {"reference": "teacher"})))
    needs = needs_of(reading)
    assert needs.tokens == ("policy", "teacher")
    assert needs.sequences == ("score",)
    assert needs.options == {"scale": 2.0}
    assert reading(**COLUMNS, teacher_T=torch.tensor([1.0])).tolist() == [14.0]
    assert reading(**COLUMNS, teacher_T=torch.tensor([1.0]), scale=1.0).tolist() == [12.0]


def test_one_column_may_be_read_in_two_places() -> None:
    """It is asked for once."""
    reading = Reading(gap, {"reference": "policy"})
    assert needs_of(reading).tokens == ("policy",)
    assert reading(**COLUMNS).tolist() == [10.0]


def test_a_column_that_the_function_does_not_read_is_refused() -> None:
    """M1."""
    with pytest.raises(WrongValue, match="gap reads no column 'references'; did you mean referen"):
        Reading(gap, {"references": "teacher"})
