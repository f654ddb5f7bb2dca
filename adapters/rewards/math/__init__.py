"""Mathematical equality of answer and truth, by math-verify."""

from hexpo.adapters.rewards.math.reward import Config, build

__all__ = ["Config", "build"]
