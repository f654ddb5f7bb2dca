"""Which terms an engine has to run multi-token heads for."""

from __future__ import annotations

from hexpo.domain.losses.ppo import ppo
from hexpo.domain.losses.supervised import mtp
from hexpo.domain.objective import Loss, Objective, Term


def test_an_objective_knows_which_of_its_terms_read_multi_token_heads() -> None:
    """Their places, in order; an objective without one asks for no head."""
    policy = Term(name="policy", loss=Loss(function=ppo))
    ahead = Term(name="ahead", loss=Loss(function=mtp), coefficient=0.1)
    assert Objective(terms=(policy, ahead)).foresees == (1,)
    assert Objective(terms=(ahead, policy)).foresees == (0,)
    assert Objective(terms=(policy,)).foresees == ()
