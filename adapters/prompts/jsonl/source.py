"""Reads JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO

from hexpo.adapters.prompts.wire.config import Config
from hexpo.application.ports.prompts import PromptSource
from hexpo.domain.errors import DataError


def build(config: Config, *, seed: int) -> PromptSource:
    """Read the files; `seed` is the run's, for the order of epochs.

    Raises: DataError: a missing file, a bad row (its file, line and field), no row at all.
    """
    from hexpo.adapters.prompts.wire.files import source_of

    return source_of(config, _read, seed=seed, what="prompts/jsonl")


def _read(file: BinaryIO, name: str) -> Iterator[tuple[int, object]]:
    for row, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:  # also bytes that are no UTF-8
            raise DataError(
                f"{name}, row {row}: the line is no JSON ({error}); mend or remove it"
            ) from error
        yield row, record
