"""Calls a user's function, in whichever of three styles it is written. Runs in a grader process.

The styles are known by parameter names:

    hexpo  reward(prompt, answer, truth, **extra)
    verl   compute_score(data_source, solution_str, ground_truth, extra_info)
    TRL    f(prompts, completions, **columns), which returns a list
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

Sample = Mapping[str, Any]


class Style(Enum):
    """Whose signature a function has."""

    HEXPO = "hexpo"
    """`answer` among its parameters."""
    VERL = "verl"
    """`solution_str` and `ground_truth` among them."""
    TRL = "trl"
    """`completions` among them; it is called with lists of one."""


def make(function: str, arguments: Mapping[str, Any], truth_as: str, chat: bool) -> Grade:  # noqa: FBT001
    """The grader for a function's name. Raises whatever finding and loading it raises."""
    found = functools.partial(find(function), **arguments)
    return Grade(found, style_of(found), truth_as=truth_as, chat=chat)


def find(name: str) -> Callable[..., Any]:
    """The function of `file.py:name`, `module:name` or `module.name`."""
    place, _, attribute = name.rpartition(":") if ":" in name else name.rpartition(".")
    if not place or not attribute:
        raise ValueError(f"{name!r} is neither file.py:name nor package.module.name")
    module = _from_file(place) if place.endswith(".py") else importlib.import_module(place)
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"{place} has no function {attribute!r}; it has {', '.join(names)}")
    return found  # type: ignore[no-any-return]


def _from_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no file {path!r} (from {os.getcwd()!r})")
    spec = importlib.util.spec_from_file_location("hexpo_user_reward", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # as a script finds its neighbours
    spec.loader.exec_module(module)
    return module


def style_of(function: Callable[..., Any]) -> Style:
    """The style of a function. Raises: TypeError: none of the three; shows its parameters."""
    names = inspect.signature(function).parameters
    if {"solution_str", "ground_truth"} <= names.keys():
        return Style.VERL
    if "completions" in names:
        return Style.TRL
    if "answer" in names:
        return Style.HEXPO
    raise TypeError(
        f"it takes ({', '.join(names)}); known are reward(prompt, answer, truth, **extra), "
        "compute_score(data_source, solution_str, ground_truth, extra_info) and "
        "f(prompts, completions, **columns)"
    )


class Grade:
    """A user's function as a function of one sample."""

    def __init__(
        self, function: Callable[..., Any], style: Style, *, truth_as: str, chat: bool
    ) -> None:
        self._function = function
        self._truth_as = truth_as
        self._chat = chat
        parameters = inspect.signature(function).parameters.values()
        self._named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._call = {
            Style.HEXPO: self._hexpo,
            Style.VERL: self._verl,
            Style.TRL: self._trl,
        }[style]
        self.wants = ("answer_ids",) if style is Style.TRL else ()

    def __call__(self, sample: Sample) -> Any:
        """A number, or a dict with `score`."""
        return self._call(sample)

    def _hexpo(self, sample: Sample) -> Any:
        # The row's own columns go in by name, but never in place of what hexpo gives.
        return self._run({**sample["extra"]}, given=sample)

    def _verl(self, sample: Sample) -> Any:
        given = {
            "data_source": sample["source"],
            "solution_str": sample["answer"],
            "ground_truth": sample["truth"],
            "extra_info": sample["extra"].get("extra_info") or {},
        }
        return self._run({}, given=given)

    def _trl(self, sample: Sample) -> Any:
        answer = sample["answer"]
        given = {
            "prompts": [sample["messages"] if self._chat else sample["prompt"]],
            "completions": [[{"role": "assistant", "content": answer}] if self._chat else answer],
            "completion_ids": [sample["answer_ids"]],
        }
        columns = {key: [value] for key, value in sample["extra"].items()}
        columns[self._truth_as] = [sample["truth"]]
        result = self._run(columns, given=given)
        if not isinstance(result, list | tuple) or len(result) != 1:
            raise TypeError(f"a list of one reward is needed, it returned {result!r:.200}")
        if result[0] is None:
            raise NotImplementedError("it returned None: this sample is not its kind")
        return result[0]

    def _run(self, columns: Mapping[str, Any], *, given: Mapping[str, Any]) -> Any:
        named = {key: value for key, value in given.items() if key in self._named}
        rest = {
            key: value
            for key, value in columns.items()
            if key not in named and (self._takes_all or key in self._named)
        }
        result = self._function(**rest, **named)
        return asyncio.run(_value_of(result)) if inspect.isawaitable(result) else result


async def _value_of(awaitable: Any) -> Any:
    return await awaitable
