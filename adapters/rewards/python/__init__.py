"""A user's own function as the reward: hexpo's, verl's and TRL's signatures as they are."""

from hexpo.adapters.rewards.python.reward import Config, build

__all__ = ["Config", "build"]
