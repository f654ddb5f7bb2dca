"""Whether a failed write met a full disk, whichever library wrote."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hexpo.domain.errors import CheckpointError, HexpoError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = re.compile(rf"\(os error ({'|'.join(map(str, _FULL))})\)")
"""How safetensors tells a number that it does not carry."""
_ALMOST_FULL = 1 << 20
"""Bytes free below which a failed write is taken for one that met a full disk."""


def is_full(error: BaseException, folder: Path) -> bool:
    """The disk of `folder` is full, or its quota used up: by the error or what it came from, by
    what it says, or by what is free (a quota is not seen so)."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _FULL:
            return True
        if _SAID.search(str(found)):
            return True
        found = found.__cause__
    return folder.is_dir() and shutil.disk_usage(folder).free < _ALMOST_FULL


def of_full_disk(error: BaseException, folder: Path) -> CheckpointError:
    """What is told of a save that met it."""
    return CheckpointError(
        f"the disk of {folder} is full ({error}): what was being written was given up, the "
        "save before it is intact. Free space, or lower `keep`, then resume"
    )


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """A block that writes to `folder`. Raises CheckpointError: the disk is full; any other error
    passes as it is."""
    try:
        yield
    except HexpoError:
        raise
    except Exception as error:
        if is_full(error, folder):
            raise of_full_disk(error, folder) from error
        raise
