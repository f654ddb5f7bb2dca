"""Rows from JSON Lines files: one object a line."""

from hexpo.adapters.prompts.jsonl.source import build
from hexpo.adapters.prompts.wire.config import Config

__all__ = ["Config", "build"]
