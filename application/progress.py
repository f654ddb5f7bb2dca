"""A use case's own part of a checkpoint: one JSON file, and the format that it was written in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol, TypeVar

import cattrs

from hexpo.domain.errors import CheckpointError


class Formatted(Protocol):
    """A value that knows its format."""

    @property
    def format(self) -> int:
        """Raised when a field changes its meaning."""
        ...


Value = TypeVar("Value", bound=Formatted)


def write_progress(path: Path, value: Formatted, *, converter: cattrs.Converter) -> None:
    """Write one value; it blocks."""
    path.write_text(json.dumps(converter.unstructure(value), indent=1))


def read_progress(
    path: Path, kind: type[Value], *, known: int, converter: cattrs.Converter
) -> Value:
    """The value that lies there.

    Args: known: the only format that is read.
    Raises: CheckpointError: the file is missing, damaged, or of another format.
    """
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict):
            raise ValueError(f"it holds {data!r}")
        value = converter.structure(data, kind)
    except (OSError, ValueError, cattrs.BaseValidationError) as error:
        raise CheckpointError(
            f"{path} is missing or damaged ({error}); delete this checkpoint to resume from the"
            " one before it"
        ) from error
    if value.format != known:
        raise CheckpointError(
            f"{path} has format {value.format}, this hexpo reads {known}; resume it with the"
            " version that wrote it"
        )
    return value
