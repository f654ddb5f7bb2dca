"""Agent `dialogue`: a conversation whose further questions stand in the data."""

from hexpo.adapters.agents.dialogue.agent import Config, build, capabilities

__all__ = ["Config", "build", "capabilities"]
