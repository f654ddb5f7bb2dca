"""A file of JSON lines ordered by step, that a killed run may have left with half a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from io import BufferedRandom
from pathlib import Path
from typing import Any


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as text, which `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def encode(row: Mapping[str, Any]) -> bytes:
    """One line. What JSON does not know is written as its text, half a surrogate pair, which UTF-8
    does not know, as JSON's escape of it."""
    text = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False, default=str)
    return text.encode(errors="backslashreplace") + b"\n"


class StepLines:
    """Lines with a `step`; those after a step can be cut off, the last one replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BufferedRandom | None = None
        self._last = 0
        """Where the last line begins."""

    def open_up_to(self, step: int | None) -> list[dict[str, Any]]:
        """Keep the whole lines up to `step` (None: all), drop the rest; returns those of `step`."""
        self.close()
        file = self._file = _open(self._path)
        rows: list[dict[str, Any]] = []
        end = 0
        for line, row in _whole_rows(file):
            if step is not None and row["step"] > step:
                break
            self._last, end = end, end + len(line)
            if row["step"] == step:
                rows.append(row)
        file.truncate(end)
        file.seek(end)
        return rows

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a line, and see it into the file."""
        file = self._opened()
        self._last = file.seek(0, os.SEEK_END)
        file.write(encode(row))
        file.flush()

    def replace(self, row: Mapping[str, Any]) -> None:
        """Write over the last line."""
        file = self._opened()
        file.seek(self._last)
        file.write(encode(row))
        file.truncate()
        file.flush()

    def close(self) -> None:
        """Put everything on the disk. Safe to call twice."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def _opened(self) -> BufferedRandom:
        if self._file is None:
            self.open_up_to(None)
        if self._file is None:
            raise OSError(f"{self._path} could not be opened")
        return self._file


def _open(path: Path) -> BufferedRandom:
    """The file for reading and writing; made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path.open("r+b")


def _whole_rows(file: BufferedRandom) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Lines and their rows, up to the first that a crash cut short."""
    for line in file:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if not line.endswith(b"\n") or not isinstance(row, dict) or "step" not in row:
            return
        yield line, row
