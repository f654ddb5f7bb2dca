"""Rollout correction: the policy that trains against the policy that sampled."""
