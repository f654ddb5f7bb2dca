"""The score of a reward model that `hexpo fit` trained."""

from hexpo.adapters.rewards.model.reward import Config, ModelReward, build

__all__ = ["Config", "ModelReward", "build"]
