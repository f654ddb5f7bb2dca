"""How a model family is loaded, run packed, run with a cache, and named on export.

Knows no port; training and rollout adapters share it.
"""
