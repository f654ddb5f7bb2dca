"""Agent `single_turn`: one question, one answer."""

from hexpo.adapters.agents.single_turn.agent import build

__all__ = ["build"]
