"""Tracker `tensorboard`: event files that TensorBoard shows (extra `trackers`)."""

from hexpo.adapters.trackers.tensorboard.tracker import Config, build

__all__ = ["Config", "build"]
