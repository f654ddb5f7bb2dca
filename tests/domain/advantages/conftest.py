"""The fixture of the golden vectors as a packed batch of four rows with four tokens each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

DATA = Path(__file__).parents[2] / "data" / "golden-vectors.json"


@attrs.frozen(kw_only=True, eq=False)
class Golden:
    """Columns by the names that estimators take, and what the oracle gives."""

    columns: dict[str, Tensor]
    expected: dict[str, Any]
    """By the oracle's names, each (4, 4)."""

    def of(self, function: Any, **options: Any) -> Any:
        """Call an estimator with the columns that its signature names."""
        import inspect

        wanted = inspect.signature(function).parameters
        return function(**{n: self.columns[n] for n in wanted if n in self.columns}, **options)

    def at_actions(self, rows: list[list[float]]) -> Tensor:
        """(N,) of a padded table, action tokens only."""
        return torch.tensor(rows).flatten()[self.columns["action_T"]]


@pytest.fixture(scope="session")
def golden() -> Golden:
    """Four answers of two prompts, with tool tokens inside one and padding behind another."""
    data = json.loads(DATA.read_text())
    fixture = data["fixture"]
    action_T = torch.tensor(fixture["mask"]).flatten().bool()
    reward_T = torch.tensor(fixture["token_level_rewards"]).flatten()
    owner_T = torch.repeat_interleave(torch.full((4,), 4))
    return Golden(
        columns={
            "reward_T": reward_T,
            "value_T": torch.tensor(fixture["values"]).flatten(),
            "old_T": torch.tensor(data["otb_old_log_probs"]).flatten(),
            "behaviour_T": torch.zeros(16),
            "squares_T": torch.full((16,), 0.5),
            "action_T": action_T,
            "owner_T": owner_T,
            "score_S": torch.tensor([1.0, 0.0, 0.5, 1.0], dtype=torch.float64),
            "scored_S": torch.ones(4, dtype=torch.bool),
            "group_S": torch.tensor([0, 0, 1, 1]),
            "actions_S": torch.bincount(owner_T[action_T]),
            "greedy_S": torch.tensor([0.5, 0.5, 0.25, 0.25], dtype=torch.float64),
        },
        expected={**data["advantages"], **{k: v for k, v in data.items() if k.startswith("gdpo")}},
    )
