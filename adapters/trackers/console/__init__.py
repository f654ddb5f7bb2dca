"""Tracker `console`: the run in a terminal; one line a step where there is none."""

from hexpo.adapters.trackers.console.tracker import Config, build

__all__ = ["Config", "build"]
