"""Rollout in the trainer's own process, on the trainer's own policy."""

from hexpo.adapters.rollout.embedded.building import Config, DecodePrecision, build
from hexpo.adapters.rollout.embedded.engine import EmbeddedEngine

__all__ = ["Config", "DecodePrecision", "EmbeddedEngine", "build"]
