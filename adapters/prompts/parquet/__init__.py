"""Rows from Parquet files, nested fields included."""

from hexpo.adapters.prompts.parquet.source import build
from hexpo.adapters.prompts.wire.config import Config

__all__ = ["Config", "build"]
