"""Scores of reasoning-gym's own tasks."""

from hexpo.adapters.rewards.reasoning_gym.reward import Config, Extract, build

__all__ = ["Config", "Extract", "build"]
