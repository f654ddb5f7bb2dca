"""Rows from Parquet files, nested fields included."""

from hexpo.adapters.prompts.parquet.source import Config, build

__all__ = ["Config", "build"]
