"""Rows from JSON Lines files: one object a line."""

from hexpo.adapters.prompts.jsonl.source import Config, build

__all__ = ["Config", "build"]
