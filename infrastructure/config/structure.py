"""From a plain mapping to attrs classes and back; every problem is collected, none coerced."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, Union

import attrs
import cattrs

from hexpo.domain.errors import HexpoError, WrongValue
from hexpo.infrastructure.find import closest

T = TypeVar("T")


@attrs.frozen
class Problem:
    """One thing that is wrong with a configuration."""

    key: str
    """Dotted."""
    message: str
    """What is wrong and what to do."""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


def structure(
    values: Mapping[str, Any], of: type[T], *, at: str = "", elsewhere: Sequence[str] = ()
) -> tuple[T | None, list[Problem]]:
    """An attrs object from a mapping, or all that hinders it.

    Args: at: dotted key of the mapping, for the problems.
        elsewhere: dotted keys of the whole schema, to point to for a misplaced key.
    Returns: the object and no problem, or None and the problems.
    """
    fields = {field.name: field for field in attrs.fields(of) if field.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(of)
    problems = [
        Problem(_join(at, key), _unknown(str(key), list(fields), elsewhere))
        for key in values
        if key not in fields
    ]
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        key = _join(at, name)
        if name in values:
            value, found = _value(values[name], hints[name], key, elsewhere)
            if not found and field.validator is not None:
                found = _out_of_range(field, value, key)
            problems += found
            arguments[name] = value
        elif field.default is attrs.NOTHING:
            problems.append(Problem(key, "is missing, and has no default"))
    if problems:
        return None, problems
    try:
        return of(**arguments), []
    except (HexpoError, ValueError, TypeError) as error:
        return None, [Problem(at, _words(error))]


def plain(value: Any) -> Any:
    """An attrs object as mappings, lists and scalars: what `structure` reads."""
    return _converter().unstructure(value)


def structure_value(value: Any, of: Any) -> Any:
    """One value of a plain type or an enum, nothing coerced. Raises WrongValue."""
    try:
        return _converter().structure(value, of)
    except Exception as error:
        if isinstance(error, HexpoError | ValueError | TypeError | cattrs.BaseValidationError):
            raise WrongValue(_words(error)) from error
        raise


def is_section(kind: Any) -> bool:
    """Whether a field's type is an attrs class."""
    return isinstance(kind, type) and attrs.has(kind)


def members(kind: Any) -> tuple[Any, ...]:
    """Members of a union; the type itself otherwise."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _value(value: Any, kind: Any, key: str, elsewhere: Sequence[str]) -> tuple[Any, list[Problem]]:
    options = members(kind)
    if value is None and type(None) in options:
        return None, []
    section = next((option for option in options if is_section(option)), None)
    if section is not None and (isinstance(value, Mapping) or len(set(options)) <= 2):
        if isinstance(value, section):
            return value, []
        if not isinstance(value, Mapping):
            return None, [Problem(key, f"must be a section with keys, not {value!r}")]
        return structure(value, section, at=key, elsewhere=elsewhere)
    item = _item(kind)
    if is_section(item) and isinstance(value, list | tuple):
        parts = [_value(v, item, f"{key}[{i}]", elsewhere) for i, v in enumerate(value)]
        return tuple(part for part, _ in parts), [p for _, found in parts for p in found]
    try:
        return structure_value(value, kind), []
    except WrongValue as error:
        return None, [Problem(key, str(error))]


def _item(kind: Any) -> Any:
    arguments = typing.get_args(kind)
    is_row = typing.get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
    return arguments[0] if is_row else None


def _out_of_range(field: attrs.Attribute[Any], value: Any, key: str) -> list[Problem]:
    try:
        field.validator(None, field, value)  # type: ignore[misc]
    except (HexpoError, ValueError, TypeError) as error:
        return [Problem(key, _words(error))]
    except AttributeError:  # it looks at other fields: judged when the whole object is made
        return []
    return []


def _unknown(key: str, known: Sequence[str], elsewhere: Sequence[str]) -> str:
    same_name = (path for path in elsewhere if "." in path and path.rpartition(".")[2] == key)
    if (other := next(same_name, None)) is not None:
        return f"unknown key; did you mean {other!r}?"
    return f"unknown key{closest(key, known)}"


def _join(at: str, name: Any) -> str:
    return f"{at}.{name}" if at else str(name)


def _words(error: BaseException) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(dict.fromkeys(_words(inner) for inner in error.exceptions))
    first = error.args[0] if error.args else error
    return str(first)


@lru_cache(maxsize=1)
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list, frozenset: sorted})
    for kind, accepted, word in (
        (bool, (bool,), "true or false"),
        (int, (int,), "a whole number"),
        (float, (int, float), "a number"),
        (str, (str,), "text (put quotes around it)"),
    ):
        converter.register_structure_hook(kind, _scalar(kind, accepted, word))
    converter.register_structure_hook(Path, lambda value, _: Path(_text(value)))
    converter.register_unstructure_hook(Path, str)
    converter.register_structure_hook_func(
        lambda kind: inspect.isclass(kind) and issubclass(kind, Enum), _member
    )
    converter.register_structure_hook_func(lambda kind: len(members(kind)) > 1, _any_of)
    converter.register_structure_hook_func(
        lambda kind: tuple in (typing.get_origin(kind), kind), _row
    )
    return converter


def _scalar(kind: type, accepted: tuple[type, ...], word: str) -> Any:
    def hook(value: Any, _: Any) -> Any:
        is_right = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
        if not is_right:
            raise WrongValue(f"must be {word}, not {value!r}")
        return kind(value)

    return hook


def _text(value: Any) -> str:
    if not isinstance(value, str | Path):
        raise WrongValue(f"must be a path, not {value!r}")
    return str(value)


def _member(value: Any, kind: type[Enum]) -> Enum:
    if isinstance(value, kind):
        return value
    known = [str(member.value) for member in kind]
    for member in kind:
        if member.value == value:
            return member
    raise WrongValue(f"{value!r} is not one of {', '.join(known)}")


def _any_of(value: Any, kind: Any) -> Any:
    if value is None and type(None) in members(kind):
        return None
    refused = []
    for option in members(kind):
        if option is type(None):
            continue
        try:
            return _converter().structure(value, option)
        except (HexpoError, ValueError, TypeError, cattrs.BaseValidationError) as error:
            refused.append(_words(error))
    raise WrongValue("; or ".join(dict.fromkeys(refused)))


def _row(value: Any, kind: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise WrongValue(f"must be a list, not {value!r}")
    arguments = typing.get_args(kind)
    if not arguments:
        return tuple(value)
    if arguments[-1] is Ellipsis:
        return tuple(_converter().structure(item, arguments[0]) for item in value)
    if len(arguments) != len(value):
        raise WrongValue(f"must be a list of {len(arguments)}, not {value!r}")
    return tuple(_converter().structure(v, kind) for v, kind in zip(value, arguments, strict=True))
