"""Opens the files of a source and reads their rows, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

import fsspec

from hexpo.adapters.prompts.wire.config import Config
from hexpo.adapters.prompts.wire.order import OrderedRows
from hexpo.adapters.prompts.wire.schema import Place, prompt_from
from hexpo.domain.errors import DataError, MissingExtra
from hexpo.domain.trajectory import Prompt

Read = Callable[[BinaryIO, str], Iterator[tuple[int, object]]]
"""Rows of an open file, each with its number from 1; gets the file's name for its errors."""


def source_of(config: Config, read: Read, *, seed: int, what: str) -> OrderedRows:
    """Read all rows of `config.paths` into a source.

    Raises: DataError: a missing file, a bad row (file, number, field), no row at all.
        MissingExtra: a path's protocol needs a package that is not installed.
    """
    rows: list[Prompt] = []
    for prompt in _prompts(config, read):
        rows.append(prompt)
        if len(rows) == config.limit:
            break
    what = f"{what} ({', '.join(config.paths)})"
    return OrderedRows(rows, seed=seed, shuffle=config.shuffle, what=what)


def _prompts(config: Config, read: Read) -> Iterator[Prompt]:
    for path in config.paths:
        for file in _expand(path):
            name = PurePosixPath(file.path).name
            try:
                with file as opened:
                    for row, record in read(opened, file.path):
                        place = Place(file=file.path, name=name, row=row)
                        yield prompt_from(record, config, at=place)
            except FileNotFoundError as error:
                raise DataError(f"{path}: there is no such file; check `paths`") from error
            except OSError as error:
                raise DataError(f"{path}: can't be read: {error}; check `paths`") from error


def _expand(path: str) -> list[fsspec.core.OpenFile]:
    try:
        files = fsspec.open_files(path, "rb")
    except ImportError as error:
        raise MissingExtra(f"{path}: {error}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}; check `paths`") from error
    if not files:
        raise DataError(f"{path}: no file matches; check `paths`")
    return list(files)
