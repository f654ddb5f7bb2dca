"""Importance weights over their mean in the whole step."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hexpo.domain.correction.normalising import Normalising
from hexpo.domain.correction.weights import Level, stored
from hexpo.domain.errors import WrongValue
from hexpo.domain.signature import needs_of


@given(seed=st.integers(0, 1000), level=st.sampled_from(Level))
def test_stored_weights_have_a_mean_of_one_and_leave_other_tokens_alone(
    seed: int, level: Level
) -> None:
    """algorithms.md, batch normalisation: they scale nothing as a whole."""
    noise = torch.Generator().manual_seed(seed)
    owner_T = torch.tensor([0, 0, 0, 1, 1, 2])
    trained_T = torch.tensor([False, True, True, True, True, True])
    old_T, behaviour_T = -torch.rand(2, 6, generator=noise)
    make = Normalising(level=level, bound=1.1)
    assert needs_of(make).tokens == ("old", "behaviour", "owner", "trained")
    made = make(old_T=old_T, behaviour_T=behaviour_T, owner_T=owner_T, trained_T=trained_T)
    weights_T = made["correction"]
    assert weights_T[0] == 1
    if level is Level.TOKEN:
        plain_N = (old_T - behaviour_T)[1:].exp().clamp(max=1.1)
        assert_close(weights_T[1:], plain_N / plain_N.mean())
    rows = [weights_T[trained_T & (owner_T == row)] for row in range(3)]
    mean = (
        weights_T[1:].mean() if level is Level.TOKEN else torch.stack([r[0] for r in rows]).mean()
    )
    assert mean.item() == pytest.approx(1.0, abs=1e-5)
    assert stored(correction_T=weights_T, level=level, bound=1.1).equal(weights_T)
    assert pickle.loads(pickle.dumps(make)) == make


def test_options_of_stored_weights_are_checked_when_they_are_read() -> None:
    """M2: they are used before the step, and refused before anything loads."""
    with pytest.raises(WrongValue, match="bound"):
        stored(correction_T=torch.ones(1), bound=0.0)
    with pytest.raises(WrongValue, match="level"):
        stored(correction_T=torch.ones(1), level="row")
