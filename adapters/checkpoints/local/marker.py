"""The completeness marker of a save: its files, their sizes and digests, written last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

NAME = "complete.json"
"""Name of the marker in a save's folder."""

FORMAT = 1
"""Raised when the marker's meaning changes."""


@attrs.frozen
class Entry:
    """One file of a save."""

    size: int
    digest: str
    """BLAKE2b, 32 bytes, in hex."""


def files_of(folder: Path) -> Iterator[Path]:
    """Every file below `folder` but the marker, in a fixed order."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / NAME:
            yield path


def digest(path: Path) -> str:
    """BLAKE2b of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal(folder: Path, step: int) -> None:
    """See all files of a save onto the disk, then write its marker. Raises: OSError."""
    entries = {}
    for path in files_of(folder):
        sync(path)
        entries[path.relative_to(folder).as_posix()] = Entry(path.stat().st_size, digest(path))
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        sync(inner)
    rows = {name: attrs.asdict(entry) for name, entry in entries.items()}
    marker = folder / NAME
    marker.write_text(json.dumps({"format": FORMAT, "step": step, "files": rows}, indent=1))
    sync(marker)
    sync(folder)


def _read(folder: Path) -> Mapping[str, Entry]:
    """Raises: OSError, ValueError, KeyError, TypeError: there is no readable marker."""
    content = json.loads((folder / NAME).read_text())
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, this version reads {FORMAT}")
    return {name: Entry(**row) for name, row in content["files"].items()}


def fault(folder: Path, *, digests: bool) -> str:
    """What is wrong with a save, naming the file; empty if it is whole.

    Args: digests: read every byte too; else names and sizes only.
    """
    try:
        entries = _read(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / NAME} is missing or unreadable ({error})"
    for name, entry in entries.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry.size:
                return f"{path} has {size} bytes, {entry.size} were saved"
            if digests and digest(path) != entry.digest:
                return f"{path} is not what was saved: its digest differs"
        except OSError as error:
            return f"{path} can't be read ({error.strerror})"
    return ""
