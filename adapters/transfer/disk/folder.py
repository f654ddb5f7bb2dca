"""A folder of versions, anywhere that fsspec reaches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hexpo.application.ports.transfer import Update
from hexpo.domain.errors import EngineFailed, MissingExtra

INDEX = "index.json"
"""Written last: without it a version is not there."""
_PREFIX = "version-"


class Versions:
    """Names and files of the versions in one folder."""

    def __init__(self, folder: str) -> None:
        try:
            import fsspec
        except ModuleNotFoundError as error:
            raise MissingExtra("transfer/disk needs fsspec: pip install fsspec") from error
        self._files, self._root = fsspec.core.url_to_fs(folder)

    @staticmethod
    def of(update: Update) -> Versions:
        """Raises EngineFailed: the update was made by another transfer."""
        folder = update.address.get("folder")
        if not isinstance(folder, str) or "keep" not in update.address:
            raise EngineFailed(
                "the update was made by another transfer than disk: sender, receivers and driver"
                " must be of one kind"
            )
        return Versions(folder)

    def begin(self, version: int) -> None:
        """An empty folder for a version; what a cut attempt left there goes."""
        self._remove(version)
        self._files.makedirs(self._path(version), exist_ok=True)

    def write(self, version: int, name: str, content: bytes) -> None:
        """A file, as a whole."""
        with self._files.open(self._path(version, name), "wb") as file:
            file.write(content)

    def read(self, version: int, name: str) -> bytes:
        """A file, as a whole. Raises FileNotFoundError."""
        content: bytes = self._files.cat_file(self._path(version, name))
        return content

    def end(self, version: int, files: Sequence[str], *, keep: int) -> None:
        """The version is whole; of older ones the newest `keep` - 1 stay."""
        self.write(version, INDEX, json.dumps({"files": list(files)}).encode())
        for old in sorted(self.present(), reverse=True)[keep:]:
            self._remove(old)

    def present(self) -> list[int]:
        """Numbers of the versions that have a folder."""
        self._files.invalidate_cache()
        found = self._files.ls(self._root, detail=False)
        names = [path.rstrip("/").rpartition("/")[2] for path in found]
        numbers = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return [int(number) for number in numbers if number.isdigit()]

    def index(self, version: int) -> Mapping[str, Any]:
        """What `end` wrote. Raises EngineFailed: the version is not there, or not whole."""
        self._files.invalidate_cache()
        try:
            found: Mapping[str, Any] = json.loads(self.read(version, INDEX))
        except FileNotFoundError as error:
            raise EngineFailed(
                f"version {version} is not (or not any more) in {self._root}: its {INDEX} is"
                " missing; trainer and replicas must see the same folder"
            ) from error
        return found

    def _remove(self, version: int) -> None:
        path = self._path(version)
        if self._files.exists(path):
            self._files.rm(path, recursive=True)

    def _path(self, version: int, name: str = "") -> str:
        return f"{self._root.rstrip('/')}/{_PREFIX}{version}" + (f"/{name}" if name else "")
