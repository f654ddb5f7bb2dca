"""Rewards: a user's function, mathematics and procedural tasks, graded in processes."""
