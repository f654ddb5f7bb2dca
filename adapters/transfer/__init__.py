"""How a version of the weights reaches the rollout engines."""
