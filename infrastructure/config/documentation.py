"""The line under each field, read from the source: the documentation page and `plan` share it."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any

import attrs

from hexpo.infrastructure.config.structure import is_section, members, plain


@attrs.frozen
class Field:
    """One key of the page."""

    key: str
    kind: str
    default: str
    """Empty where it must be given."""
    text: str


def lines_under(of: type[Any]) -> dict[str, str]:
    """Documentation of fields or enum members: the string that stands under each."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(of)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found: dict[str, str] = {}
    for statement, below in itertools.pairwise(body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        name = _assigned(statement)
        if name and is_text:
            found[name] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return found


def fields_of(of: type[Any], *, prefix: str = "") -> Iterator[Field]:
    """All keys of a section and of those inside it, in order."""
    texts = lines_under(of)
    for field in attrs.fields(attrs.resolve_types(of)):
        key = f"{prefix}{field.name}"
        inner = [option for option in members(field.type) if is_section(option)]
        if inner:
            yield from fields_of(inner[0], prefix=f"{key}.")
        else:
            text = texts.get(field.name, "")
            yield Field(key, _kind(field.type), _default(field), text + _choices(field.type))


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return ""


def _kind(kind: Any) -> str:
    options = [option for option in members(kind) if option is not type(None)]
    if any(isinstance(option, type) and issubclass(option, Enum) for option in options):
        return "choice"
    words = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    named = [words.get(option) or _collection(option) for option in options]
    return " or ".join(dict.fromkeys(named))


def _collection(kind: Any) -> str:
    text = str(kind)
    return "list" if text.startswith(("tuple", "list", "collections.abc.Sequence")) else "keys"


def _choices(kind: Any) -> str:
    enums = [k for k in members(kind) if isinstance(k, type) and issubclass(k, Enum)]
    if not enums:
        return ""
    texts = lines_under(enums[0])
    parts = [f"`{member.value}`: {texts.get(member.name, '')}" for member in enums[0]]
    return "<br>" + "<br>".join(parts)


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return ""
    made = field.default
    if isinstance(made, attrs.Factory):  # type: ignore[arg-type]
        made = made.factory()  # type: ignore[union-attr]
    value = plain(made)
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if value == "" else str(value)
