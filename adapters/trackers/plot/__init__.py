"""Tracker `plot`: `reward.png`, the curve of the run (extra `demo`)."""

from hexpo.adapters.trackers.plot.tracker import Config, build

__all__ = ["Config", "build"]
