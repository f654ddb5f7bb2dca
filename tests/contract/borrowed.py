"""A contract's tests, run by a module that opens the adapter in a way of its own."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def own_copy(path: Path) -> ModuleType:
    """A module of tests, loaded once more: under its own name pytest runs it itself."""
    spec = importlib.util.spec_from_file_location(f"copy_of_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def borrowed(
    suite: ModuleType,
    *,
    without: Callable[[str], bool],
    refused: Callable[[Mapping[str, Any]], bool] = lambda given: False,
) -> Iterator[Any]:
    """Every test of a suite that takes `open_bench`, with each set of its further parameters.

    Args: without: tests, by name, that the module has in a form of its own. refused: parameters
        that the adapter does not take.
    """
    for name, test in vars(suite).items():
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
        if not name.startswith("test_") or not any(m.args[0] == "open_bench" for m in marks):
            continue
        if without(name):
            continue
        others = [mark for mark in marks if mark.args[0] != "open_bench"]
        for values in itertools.product(*(mark.args[1] for mark in others)):
            given: dict[str, Any] = {}
            for mark, value in zip(others, values, strict=True):
                names = mark.args[0]
                many = not isinstance(names, str)
                given.update(zip(names, value, strict=True) if many else {names: value})
            if not refused(given):
                label = " ".join([name, *map(str, given.values())])[:110]
                yield pytest.param(test, given, id=label)
