"""Options of adapters and of catalogue functions: checked against the thing that takes them.

An adapter's options are its `Config`; a function's are the keyword-only parameters that are not
columns. Both are filled up with their defaults, so that a resolved configuration names them all.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs

from hexpo.domain.advantages.catalogue import ADVANTAGES
from hexpo.domain.advantages.catalogue import ELSEWHERE as ADVANTAGES_ELSEWHERE
from hexpo.domain.catalogue import Entry, find
from hexpo.domain.correction import catalogue as weights
from hexpo.domain.distillation import catalogue as distillation
from hexpo.domain.errors import HexpoError, WrongValue
from hexpo.domain.kl.catalogue import KL_ESTIMATORS
from hexpo.domain.losses.catalogue import ELSEWHERE, LOSSES, OPTIONS_ELSEWHERE, TERMS
from hexpo.domain.masks import catalogue as masks
from hexpo.domain.preference import catalogue as preference
from hexpo.domain.shaping.catalogue import SHAPINGS
from hexpo.infrastructure.config.structure import Problem, plain, structure, structure_value
from hexpo.infrastructure.find import closest, config_type


@attrs.frozen
class Slot:
    """A place in the configuration where an adapter or a function is chosen by name."""

    key: str
    """Dotted key of the section; `[]` at its end for a list of such sections."""
    of: str
    """The port, or the kind of function."""
    by: str
    """Key inside the section that holds the name."""


ADAPTERS = (
    Slot("data.train", "prompts", "kind"),
    Slot("data.evaluation", "prompts", "kind"),
    Slot("reward", "rewards", "kind"),
    Slot("rollout", "rollout", "engine"),
    Slot("rollout.agent", "agents", "kind"),
    Slot("training", "training", "backend"),
    Slot("checkpoint", "checkpoints", "kind"),
    Slot("trackers[]", "trackers", "kind"),
    Slot("platform", "platform", "kind"),
    Slot("cluster", "cluster", "kind"),
)
"""Where adapters are chosen."""

FUNCTIONS = (
    Slot("algorithm.advantage", "advantage estimator", "name"),
    Slot("algorithm.loss", "policy loss", "name"),
    Slot("algorithm.terms[].loss", "term", "name"),
    Slot("algorithm.shaping[]", "shaping", "name"),
    Slot("algorithm.correction[]", "correction", "name"),
)
"""Where functions of the domain are chosen."""


def entry(of: str, name: str) -> Entry:
    """A catalogue entry, or a user's function given as `module:function`.

    Raises: WrongValue: unknown, with the nearest name; or no such module or function.
    """
    if ":" in name:
        return Entry(name=name, function=_imported(name, of))
    match of:
        case "advantage estimator":
            return find(name, ADVANTAGES, what=of, elsewhere=ADVANTAGES_ELSEWHERE)
        case "policy loss":
            known = {**LOSSES, **preference.FITTED}
            foreign = {**preference.ELSEWHERE, **ELSEWHERE}
            return find(name, known, what=of, elsewhere=foreign)
        case "shaping":
            return find(name, SHAPINGS, what="reward shaping")
        case "correction":
            known = {**weights.WEIGHTS, **masks.MASKS, **masks.GATES}
            foreign = {**weights.ELSEWHERE, **masks.ELSEWHERE}
            return find(name, known, what="weight, mask or gate", elsewhere=foreign)
        case _:
            known = {**KL_ESTIMATORS, **LOSSES, **TERMS, **distillation.DISTILLATIONS}
            foreign = {**ELSEWHERE, **distillation.ELSEWHERE}
            return find(name, known, what=of, elsewhere=foreign)


def typed(found: Entry, options: Mapping[str, Any]) -> dict[str, Any]:
    """A function's options with their types, defaults left to the function.

    Raises: WrongValue: an unknown option, a wrong type, a value out of range.
    """
    hints = typing.get_type_hints(found.function)
    values = {}
    for name, value in options.items():
        if name not in found.options:
            here = OPTIONS_ELSEWHERE.get(name)
            hint = f"; use {here}" if here else closest(name, list(found.options))
            raise WrongValue(f"unknown option {name!r}{hint}")
        try:
            values[name] = structure_value(value, hints.get(name, Any))
        except WrongValue as error:
            raise WrongValue(f"{name} {error}") from error
    found.check(values)
    return values


def complete(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The configuration with every option named, and what is wrong with the given ones."""
    whole = dict(values)
    problems: list[Problem] = []
    for slots, fill in ((ADAPTERS, _fill_adapter), (FUNCTIONS, _fill_function)):
        for slot in slots:
            whole = _at(whole, slot.key.split("."), "", slot, fill, problems)
    return whole, problems


_Fill = Callable[[Slot, str, Mapping[str, Any], str], tuple[Mapping[str, Any], list[Problem]]]


def _at(
    section: Any, path: list[str], at: str, slot: Slot, fill: _Fill, problems: list[Problem]
) -> Any:
    """Walk down to the slot and replace its `options`; what has another shape is left alone,
    because structuring will refuse it."""
    if not path:
        section = {slot.by: section} if isinstance(section, str) else section
        if not isinstance(section, Mapping) or not isinstance(section.get(slot.by), str):
            return section
        given = section.get("options") or {}
        if not isinstance(given, Mapping):
            problems.append(Problem(f"{at}.options", f"must be keys and values, not {given!r}"))
            return {**section, "options": {}}
        options, found = fill(slot, section[slot.by], given, at)
        problems += found
        return {**section, "options": dict(options)}
    name, rest = path[0].removesuffix("[]"), path[1:]
    if not isinstance(section, Mapping) or name not in section:
        return section
    key = f"{at}.{name}" if at else name
    below = section[name]
    if path[0].endswith("[]") and isinstance(below, list | tuple):
        parts = [_at(x, rest, f"{key}[{i}]", slot, fill, problems) for i, x in enumerate(below)]
        return {**section, name: parts}
    return {**section, name: _at(below, rest, key, slot, fill, problems)}


def _fill_adapter(
    slot: Slot, kind: str, given: Mapping[str, Any], at: str
) -> tuple[Mapping[str, Any], list[Problem]]:
    try:
        of = config_type(slot.of, kind)
    except HexpoError as error:
        return given, [Problem(f"{at}.{slot.by}", str(error))]
    if of is None:
        problems = [
            Problem(f"{at}.options.{key}", f"{slot.of} adapter {kind!r} has no setting")
            for key in given
        ]
        return {}, problems
    config, problems = structure(given, of, at=f"{at}.options")
    return (given if config is None else plain(config)), problems


def _fill_function(
    slot: Slot, name: str, given: Mapping[str, Any], at: str
) -> tuple[Mapping[str, Any], list[Problem]]:
    try:
        found = entry(slot.of, name)
    except HexpoError as error:
        return given, [Problem(f"{at}.{slot.by}", str(error))]
    try:
        typed(found, given)
    except (HexpoError, ValueError, TypeError) as error:
        return given, [Problem(f"{at}.options", f"{name}: {error}")]
    defaults = {
        key: plain(default)
        for key, default in found.options.items()
        if default is None or isinstance(default, bool | int | float | str | Enum)
    }
    return {**defaults, **given}, []


def _imported(path: str, what: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise WrongValue(f"{what} {path!r}: {error}") from error
    if not inspect.isfunction(function):
        raise WrongValue(f"{what} {path!r} is no function")
    return function
