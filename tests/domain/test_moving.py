"""What one step leaves to the next, beside weights."""

from __future__ import annotations

import json

import cattrs
import pytest
import torch

from hexpo.domain.advantages.catalogue import estimator
from hexpo.domain.advantages.moving import Baselines
from hexpo.domain.batch import Sequences
from hexpo.domain.kl.catalogue import kl_estimator
from hexpo.domain.kl.controllers import AdaptiveEntropy, AdaptiveKL
from hexpo.domain.kl.reward import with_kl_in_reward
from hexpo.domain.kl.term import kl_loss
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.metrics import mean_of
from hexpo.domain.moving import STILL, Moving
from hexpo.domain.objective import Loss, Objective, Term
from hexpo.domain.seeds import seed_for

ROLE = seed_for("role", "gsm8k")
ROWS = Sequences.of(
    {
        "id": torch.arange(2),
        "length": torch.tensor([3, 3]),
        "trained": torch.tensor([2, 0]),
        "score": torch.tensor([1.0, 3.0], dtype=torch.float64),
        "scored": torch.tensor([True, True]),
        "role": torch.tensor([ROLE, ROLE]),
    }
)
ADAPTIVE = Moving(
    kl=AdaptiveKL(coefficient=0.1, target=1.0, horizon=10.0),
    entropy=AdaptiveEntropy(target=1.0, step=0.005),
)


def test_a_step_moves_coefficients_by_what_it_measured() -> None:
    """algorithms.md, KL controllers: one trained row, so 1 - 0.2 x 1 / 10."""
    metrics = {"kl/kl": mean_of(0.0, 1), "train/entropy": mean_of(0.5, 1)}
    after = ADAPTIVE.after(ROWS, metrics)
    assert after.kl is not None
    assert after.kl.coefficient == pytest.approx(0.098)
    assert after.entropy is not None
    assert after.entropy.coefficient == pytest.approx(0.005)
    nothing = ADAPTIVE.after(ROWS, {})
    assert (nothing.kl, nothing.entropy) == (ADAPTIVE.kl, ADAPTIVE.entropy)


def test_baselines_follow_the_outcome_that_estimators_see() -> None:
    """B10: the shaped one, where rewards are shaped."""
    plain = STILL.after(ROWS, {}).baselines.values[ROLE]
    assert plain == pytest.approx((1 - 0.95**2) * 2.0)
    shaped = ROWS.with_columns(shaped=ROWS["score"] - 2)
    assert STILL.after(shaped, {}).baselines.values[ROLE] == pytest.approx(0.0)


def test_terms_and_estimators_take_the_present_state() -> None:
    """H2: coefficients of terms, of the KL in the reward, and baselines."""
    terms = (
        Term(name="policy", loss=Loss(function=ppo)),
        Term(name="kl", loss=kl_loss("k3"), coefficient=0.5),
        Term(name="entropy", loss=Loss(function=ppo), coefficient=0.5),
    )
    objective = ADAPTIVE.objective(Objective(terms=terms))
    assert [term.coefficient for term in objective.terms] == [1.0, 0.1, 0.0]
    in_reward = with_kl_in_reward(estimator("grpo"), kl_estimator("k1"), coefficient=0.5)
    assert ADAPTIVE.estimator(in_reward).options["kl_coefficient"] == 0.1
    assert "kl_coefficient" not in STILL.estimator(in_reward).options
    moved = Moving(baselines=Baselines({ROLE: 2.0}))
    rae = moved.estimator(estimator("rae"))
    given = {f"{name}_S": ROWS[name] for name in rae.needs.sequences}
    assert rae.function(**given, **rae.options).tolist() == [-1.0, 1.0]


def test_a_measured_kl_stays_a_measure() -> None:
    """A KL in the reward alone has a term of coefficient 0, which no controller may raise."""
    measured = Term(name="kl", loss=kl_loss("k3"), coefficient=0.0)
    (term,) = ADAPTIVE.objective(Objective(terms=(measured,))).terms
    assert term.coefficient == 0.0


def test_the_state_survives_a_file() -> None:
    """H2: as a checkpoint writes it."""
    moved = ADAPTIVE.after(ROWS, {"kl/kl": mean_of(5.0, 1)})
    text = json.dumps(cattrs.unstructure(moved))
    assert cattrs.structure(json.loads(text), Moving) == moved


def test_a_resumed_state_has_the_saved_numbers_and_the_new_settings() -> None:
    """A changed target holds at once; the coefficient goes on where it was."""
    saved = ADAPTIVE.after(ROWS, {"kl/kl": mean_of(5.0, 1)})
    new = Moving(kl=AdaptiveKL(coefficient=0.1, target=7.0)).resumed(saved)
    assert saved.kl is not None
    assert new.kl == AdaptiveKL(coefficient=saved.kl.coefficient, target=7.0)
    assert new.entropy is None
    assert new.baselines == saved.baselines


def test_a_step_is_controlled_where_a_coefficient_follows_it() -> None:
    """A1: then every row's measure is needed, not one part's."""
    assert STILL.controls is False
    assert Moving(kl=ADAPTIVE.kl).controls is True
    assert Moving(entropy=ADAPTIVE.entropy).controls is True
