"""Reads Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from hexpo.adapters.prompts.wire.config import Config
from hexpo.application.ports.prompts import PromptSource
from hexpo.domain.errors import DataError, MissingExtra


def build(config: Config, *, seed: int) -> PromptSource:
    """Read the files; `seed` is the run's, for the order of epochs.

    Raises: DataError: a missing or damaged file, a bad row (file, number, field), no row at all.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("prompts/parquet needs pyarrow: pip install 'hexpo[parquet]'") from error
    from hexpo.adapters.prompts.wire.files import source_of

    return source_of(config, _read, seed=seed, what="prompts/parquet")


def _read(file: BinaryIO, name: str) -> Iterator[tuple[int, object]]:
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
            for record in batch.to_pylist():
                row += 1
                yield row, record
    except pyarrow.ArrowException as error:
        raise DataError(f"{name}, after row {row}: not readable as Parquet: {error}") from error
