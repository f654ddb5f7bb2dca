"""Adapters by name: a folder of `hexpo.adapters.<port>`, a dotted path, or an entry point.

Nothing is imported before it is chosen, and there is no registry to mutate: the folders and the
installed distributions are the list.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hexpo.domain.errors import ConfigurationError

SHARED = ("wire", "host")
"""Folders beside the adapters of a port that hold what these share."""


def names(port: str) -> list[str]:
    """Adapters of a port that can be chosen by a plain name; imports none of them."""
    return sorted({*_own(port), *(point.name for point in _entry_points(port))})


def adapter(port: str, kind: str) -> ModuleType:
    """The module of one adapter, which has `build` and, if it has settings, `Config`.

    Args: port: a folder of `hexpo.adapters`.
        kind: a name of `names(port)`, or the dotted path of a module anywhere.
    Raises: ConfigurationError: no such adapter, with the nearest name; or it is not one.
    """
    module = _load(port, kind)
    if not callable(getattr(module, "build", None)):
        raise ConfigurationError(
            f"{module.__name__} is no adapter of {port}: it has no function `build`"
        )
    return module


def config_type(port: str, kind: str) -> type[Any] | None:
    """The adapter's `Config`; None where it has no setting. Raises ConfigurationError."""
    found: type[Any] | None = getattr(adapter(port, kind), "Config", None)
    return found


def closest(wrong: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, else the known ones, else nothing."""
    if near := difflib.get_close_matches(wrong, known, n=1, cutoff=0.55):
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(sorted(known))}" if known else ""


def _own(port: str) -> list[str]:
    folder = Path(_adapters_folder()) / port
    return [
        path.name
        for path in folder.glob("*")
        if (path / "__init__.py").is_file() and path.name not in SHARED
    ]


def _load(port: str, kind: str) -> ModuleType:
    if kind in _own(port):  # first: no other distribution replaces it, and none is looked through
        return importlib.import_module(f"hexpo.adapters.{port}.{kind}")
    for point in _entry_points(port):
        if point.name == kind:
            loaded = point.load()
            if isinstance(loaded, ModuleType):
                return loaded
            raise ConfigurationError(f"entry point hexpo.{port} {kind!r} must name a module")
    if "." in kind:
        return _import(kind, f"{port} adapter")
    raise ConfigurationError(f"there is no {port} adapter {kind!r}{closest(kind, names(port))}")


def _import(path: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise ConfigurationError(f"{what} {path!r}: there is no such module") from error
        raise


def _adapters_folder() -> str:
    spec = importlib.util.find_spec("hexpo.adapters")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("hexpo.adapters is not installed; reinstall hexpo")
    return next(iter(spec.submodule_search_locations))


def _entry_points(port: str) -> Sequence[importlib.metadata.EntryPoint]:
    return tuple(importlib.metadata.entry_points(group=f"hexpo.{port}"))
