"""Where the range of an option ends, and whether the end itself is in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexpo.domain.advantages import optimal_token_baseline, reinforce_plus_plus, vapo
from hexpo.domain.advantages.moving import Baselines
from hexpo.domain.checks import require_above, require_at_least, require_inside, require_within
from hexpo.domain.distillation.losses import jsd, skew_kl, skew_reverse_kl
from hexpo.domain.errors import WrongValue
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.losses.reinforce import aipo
from hexpo.domain.shaping import resample

T, S = torch.zeros(0), torch.zeros(0)
OWNER, FLAG = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
REWARDS: dict[str, Any] = {"reward_T": T, "action_T": FLAG, "owner_T": OWNER, "scored_S": FLAG}
VALUES: dict[str, Any] = {**REWARDS, "value_T": T}
TOPK: dict[str, Any] = {"policy_topk_T": torch.zeros(0, 2), "teacher_topk_T": torch.zeros(0, 2)}
BASELINE: dict[str, Any] = {
    **REWARDS, "old_T": T, "behaviour_T": T, "squares_T": T, "group_S": OWNER
}  # fmt: skip
AIPO: dict[str, Any] = {"policy_T": T, "behaviour_T": T, "advantage_T": T}
PPO: dict[str, Any] = {"policy_T": T, "old_T": T, "advantage_T": T}
SCORES: dict[str, Any] = {"score_S": S, "scored_S": FLAG, "generator": torch.Generator()}
ROLES: dict[str, Any] = {"score_S": S, "scored_S": FLAG, "role_S": OWNER}

CASES: list[tuple[Any, dict[str, Any], str, list[float], list[float]]] = [
    (optimal_token_baseline, BASELINE, "truncation", [0.5, 1.0], [0.0, -1.0]),
    (reinforce_plus_plus, REWARDS, "gamma", [0.0, 1.0], [-0.5, 1.5]),
    (vapo, VALUES, "gamma", [0.0, 1.0], [-0.5, 1.5]),
    (vapo, VALUES, "alpha", [0.5, 2.0], [0.0, -1.0]),
    (jsd, TOPK, "beta", [0.01, 0.99], [0.0, 1.0, 1.5]),
    (skew_kl, TOPK, "alpha", [0.01, 0.99], [0.0, 1.0, 1.5]),
    (skew_reverse_kl, TOPK, "alpha", [0.01, 0.99], [0.0, 1.0, 1.5]),
    (aipo, AIPO, "truncation", [0.5, 1.0], [0.0, -1.0]),
    (ppo, PPO, "dual_clip", [1.5, 3.0], [1.0, 0.5]),
    (resample, SCORES, "power", [0.0, 0.5], [-0.5]),
    (Baselines().after, ROLES, "decay", [0.0, 1.0], [-0.5, 1.5]),
]


@pytest.mark.parametrize(
    ("function", "columns", "option", "legal", "refused"),
    CASES,
    ids=[f"{function.__name__}-{option}" for function, _, option, *_ in CASES],
)
def test_an_option_is_legal_up_to_its_end_and_refused_beyond(
    function: Any, columns: dict[str, Any], option: str, legal: list[float], refused: list[float]
) -> None:
    """M4: as the docstring says, before any row is looked at."""
    for value in legal:
        function(**columns, **{option: value})
    for value in refused:
        with pytest.raises(WrongValue, match=option):
            function(**columns, **{option: value})


def test_the_four_checks_differ_in_whether_the_ends_belong() -> None:
    """M4: nothing that is no number passes any of them."""
    require_at_least(0.0, x=0.0)
    require_within(0.0, 1.0, x=0.0, y=1.0)
    for value in (0.0, float("nan")):
        with pytest.raises(WrongValue, match="larger than 0"):
            require_above(0.0, x=value)
    for value in (0.0, 1.0, float("nan")):
        with pytest.raises(WrongValue, match="between 0 and 1"):
            require_inside(0.0, 1.0, x=value)
    with pytest.raises(WrongValue, match="at least 0"):
        require_at_least(0.0, x=float("nan"))
