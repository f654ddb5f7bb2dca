"""A Python function in the place of a configured reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure.config import layers


def with_reward(source: Path | str | Mapping[str, Any], function: object) -> dict[str, Any]:
    """The content of a configuration whose reward is this function, graded as if it were named.

    So it runs in processes of its own, within bounds, and a run that is resumed from its folder
    finds it again. The options of a `python` reward that is configured already stay.

    Raises: ConfigurationError: it is no function, or a grader's process could not load it.
    """
    content = dict(source) if isinstance(source, Mapping) else layers.read(Path(source))
    before = content.get("reward")
    section = before if isinstance(before, Mapping) else {}
    options = section.get("options") if section.get("kind") == "python" else None
    named = {**(options or {}), "function": _name_of(function)}
    return {**content, "reward": {"kind": "python", "options": named}}


def _name_of(function: object) -> str:
    """`file.py:name` of a module that is a file by itself, else `package.module:name`."""
    if not inspect.isfunction(function):
        raise ConfigurationError(
            f"reward: {type(function).__name__} is neither a function nor has it `grade` and"
            " `close` (hexpo.application.ports.reward); give one of the two"
        )
    module, name = function.__module__, function.__qualname__
    if module == "__main__" or not name.isidentifier():
        raise ConfigurationError(
            f"reward: {module}.{name} cannot be loaded by the processes that grade: put it at the"
            " top level of a module of its own and import it from there, or give an object with"
            " `grade` and `close`"
        )
    file = _file_of(function)
    return f"{module}:{name}" if "." in module or file is None else f"{file}:{name}"


def _file_of(function: Callable[..., Any]) -> Path | None:
    """The file that defines it, where that is a Python file."""
    file = inspect.getsourcefile(function)
    return Path(file).resolve() if file is not None and file.endswith(".py") else None
