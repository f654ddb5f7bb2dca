"""Rewards: a user's function (`python`), mathematics (`math`), procedural tasks (`reasoning_gym`)."""
