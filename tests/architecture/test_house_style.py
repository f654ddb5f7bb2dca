"""How the sources are written: what a program can check of it."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _sources() -> ModuleType:
    """The neighbour module; tests are no package, so it is loaded by its path."""
    path = Path(__file__).with_name("sources.py")
    spec = importlib.util.spec_from_file_location("architecture_sources", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sources = _sources()
