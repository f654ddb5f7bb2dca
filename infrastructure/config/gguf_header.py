"""The numbers at the head of a GGUF file, without reading the file: a plan must be quick."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from hexpo.domain.errors import ModelError

_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9


def read(path: Path) -> dict[str, int | float | bool | str]:
    """Scalar and text fields up to the first list (the vocabulary, which is long).

    Raises: ModelError: the file is missing, cut or no GGUF.
    """
    found: dict[str, int | float | bool | str] = {}
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is no GGUF file")
            _, _, count = struct.unpack("<IQQ", file.read(20))
            for _ in range(count):
                name, kind = _text(file), _number(file, "I")
                if kind == _LIST:
                    if name.startswith("tokenizer."):
                        break
                    _skip_list(file)
                else:
                    found[name] = _text(file) if kind == _TEXT else _number(file, _SCALARS[kind])
    except (OSError, EOFError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return found


def _number(file: BinaryIO, code: str) -> int:
    value: int = struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]
    return value


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    text = file.read(length)
    if len(text) < length:
        raise EOFError("it ends inside a text")
    return text.decode()


def _skip_list(file: BinaryIO) -> None:
    kind, count = _number(file, "I"), _number(file, "Q")
    for _ in range(count):
        if kind == _TEXT:
            _text(file)
        else:
            _number(file, _SCALARS[kind])
