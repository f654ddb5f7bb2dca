"""Rows that count as often as they are drawn by their scores."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.correction.resampling import Resampling, resampled
from hexpo.domain.errors import WrongValue
from hexpo.domain.shaping import Preference
from hexpo.domain.signature import needs_of

SCORES = st.lists(st.sampled_from([None, -1.0, 0.0, 0.25, 1.0]), max_size=9)


@given(scores=SCORES, first=st.integers(0, 99), preference=st.sampled_from(Preference))
def test_scored_rows_count_once_on_average_and_others_never(
    scores: list[float | None], first: int, preference: Preference
) -> None:
    """PF-PPO: as many rows are drawn as there are; a row's tokens have one count; B7."""
    rows = len(scores)
    scored_S = torch.tensor([score is not None for score in scores], dtype=torch.bool)
    columns = {
        "id_S": torch.arange(first, first + rows),
        "score_S": torch.tensor([score or 0.0 for score in scores]),
        "scored_S": scored_S,
        "owner_T": torch.arange(rows).repeat_interleave(torch.arange(1, rows + 1)),
    }
    make = Resampling(preference=preference, seed=3)
    repeats_T = make(**columns)["repeats"]
    last_S = torch.arange(1, rows + 1).cumsum(0) - 1
    repeats_S = repeats_T[last_S]
    assert torch.equal(repeats_S[columns["owner_T"]], repeats_T)
    assert repeats_S.sum() == scored_S.sum()
    assert not repeats_S[~scored_S].any()
    assert torch.equal(make(**columns)["repeats"], repeats_T)
    if preference is Preference.MAX_MIN and scored_S.any():
        known = columns["score_S"][scored_S]
        is_extreme_S = (columns["score_S"] == known.min()) | (columns["score_S"] == known.max())
        assert not repeats_S[~is_extreme_S].any()


def test_draws_differ_between_steps_and_seeds_and_follow_the_power() -> None:
    """Of 4,000 rows with |R| of 1 or 2, those of 2 are 4 times as likely by a power of 2."""
    rows = 4000
    columns = {
        "score_S": torch.tensor([1.0, -2.0]).repeat(rows // 2),
        "scored_S": torch.ones(rows, dtype=torch.bool),
        "owner_T": torch.arange(rows),
    }

    def drawn(make: Resampling, first: int = 0) -> torch.Tensor:
        return make(id_S=torch.arange(first, first + rows), **columns)["repeats"]

    make = Resampling()
    assert not torch.equal(drawn(make), drawn(make, first=1))
    assert not torch.equal(drawn(make), drawn(Resampling(seed=1)))
    assert drawn(make)[1::2].sum().item() / rows == pytest.approx(0.8, abs=0.03)
    assert drawn(Resampling(power=0.0))[1::2].sum().item() / rows == pytest.approx(0.5, abs=0.03)
    assert needs_of(make).sequences == ("id", "score", "scored")
    assert pickle.loads(pickle.dumps(make)) == make


def test_the_weight_is_the_count_and_its_options_are_checked() -> None:
    """C5, M2: a constant; what cannot be drawn by is refused before anything loads."""
    repeats_T = torch.tensor([0.0, 2.0], requires_grad=True)
    weights_T = resampled(repeats_T=repeats_T)
    assert weights_T.tolist() == [0.0, 2.0]
    assert not weights_T.requires_grad
    assert resampled(repeats_T=repeats_T, power=0.0).tolist() == [0.0, 2.0]
    with pytest.raises(WrongValue, match="power"):
        resampled(repeats_T=repeats_T, power=-1.0)
    with pytest.raises(WrongValue, match="did you mean max_min"):
        resampled(repeats_T=repeats_T, preference="maxmin")
