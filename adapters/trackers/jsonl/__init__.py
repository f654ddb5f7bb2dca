"""Tracker `jsonl`: `metrics.jsonl`, a line a step, and `samples.jsonl`, a line a trajectory."""

from hexpo.adapters.trackers.jsonl.tracker import Config, build

__all__ = ["Config", "build"]
