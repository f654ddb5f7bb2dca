"""Prompt sources: files of rows (`jsonl`, `parquet`) and procedural tasks (`reasoning_gym`)."""
