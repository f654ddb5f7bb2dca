"""Episodes: how a prompt is played with the policy."""

from hexpo.application.agents.dialogue import Dialogue
from hexpo.application.agents.single_turn import SingleTurn

__all__ = ["Dialogue", "SingleTurn"]
