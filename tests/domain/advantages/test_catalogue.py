"""The catalogue: complete, documented, and strict about names."""

from __future__ import annotations

import pickle
import re

import pytest
import torch

from hexpo.domain import advantages
from hexpo.domain.advantages import ADVANTAGES, Scale, estimator, grpo
from hexpo.domain.errors import WrongValue

NAMES = {
    "gae",
    "grpo",
    "gdpo",
    "grpo_passk",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "opo",
    "remax",
    "gpg",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
    "vapo",
    "distillation",
    "task_and_distillation",
    "maxrl",
    "rae",
}
GROUPED = NAMES - {
    "gae",
    "vapo",
    "reinforce_plus_plus",
    "remax",
    "rae",
    "distillation",
    "task_and_distillation",
}


def test_the_catalogue_has_every_estimator() -> None:
    """None disappears unnoticed."""
    assert set(ADVANTAGES) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_entry_states_formula_source_and_least_samples(name: str) -> None:
    """O03.3: a group estimator says that one sample per prompt means nothing."""
    entry = ADVANTAGES[name]
    assert re.search(r"=|return:|as optimal", entry.formula)
    assert entry.source
    assert entry.min_samples == (2 if name in GROUPED else 1)
    assert ("group" in entry.columns.sequences) == (name in GROUPED)
    entry.check({})


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_estimator_survives_pickle_and_says_where_it_runs(name: str) -> None:
    """It travels to the process where the rows lie."""
    made = pickle.loads(pickle.dumps(estimator(name)))
    assert made.function is ADVANTAGES[name].function
    assert made.per_token == ("action" in made.needs.tokens)


def test_unknown_names_options_values_and_columns_are_refused_with_the_nearest() -> None:
    """M1."""
    with pytest.raises(WrongValue, match="did you mean grpo"):
        estimator("grppo")
    with pytest.raises(WrongValue, match="did you mean scale"):
        estimator("grpo", {"scal": "none"})
    with pytest.raises(WrongValue, match="did you mean group"):
        estimator("grpo", {"scale": "grup"})
    with pytest.raises(WrongValue, match="did you mean group"):
        estimator("grpo", columns={"groups": "proposal"})
    with pytest.raises(WrongValue, match=r"lam is 1\.5"):
        estimator("gae", {"lam": 1.5})
    with pytest.raises(WrongValue, match="scale none"):
        estimator("dr_grpo")


def test_an_option_may_come_as_the_string_of_the_configuration() -> None:
    """The enum is what the maths compares."""
    columns = {
        "score_S": torch.tensor([1.0, 0.0]).double(),
        "scored_S": torch.ones(2, dtype=torch.bool),
        "group_S": torch.zeros(2, dtype=torch.int64),
    }
    made = estimator("grpo", {"scale": "none"})
    assert torch.equal(made.function(**columns, **made.options), grpo(**columns, scale=Scale.NONE))


def test_a_comparison_key_takes_the_place_of_the_prompt() -> None:
    """Rows of one proposal are compared, whatever prompt they belong to."""
    made = pickle.loads(pickle.dumps(estimator("rloo", columns={"group": "proposal"})))
    assert made.needs.sequences == ("score", "scored", "proposal")
    advantage_S = made.function(
        score_S=torch.tensor([1.0, 0.0, 5.0]).double(),
        scored_S=torch.ones(3, dtype=torch.bool),
        proposal_S=torch.tensor([2, 2, 9]),
    )
    assert advantage_S.tolist() == [1.0, -1.0, 0.0]


def test_the_folder_exports_what_it_lists() -> None:
    """`__all__` is what is there."""
    public = {name for name in vars(advantages) if not name.startswith("_")}
    modules = {name for name in public if type(vars(advantages)[name]).__name__ == "module"}
    functions_named_like_modules = modules & set(advantages.__all__)
    assert not functions_named_like_modules
    assert public - modules == set(advantages.__all__)
