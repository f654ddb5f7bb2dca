"""Small wrong versions of a module: each changes one operator, comparison, constant or return.

Texts, annotations, decorators and messages of errors are left alone: no test should pin them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
"""A boundary moved, and the opposite."""


Span = tuple[int, int]
"""First and last line of a function, its decorators included."""


@attrs.frozen
class Mutant:
    """One wrong version."""

    path: Path
    """The module's file."""
    place: int
    """Which changeable expression, counted in the order of `changes`."""
    line: int
    what: str
    """Before and after, in a line."""
    inside: Span | None
    """The function or method whose code holds it; None: it is evaluated while importing."""


Change = Callable[[], None]
Possible = tuple[int, str, Change, Span | None]
"""Line, what, how to do it, and inside what."""


def mutants(path: Path) -> list[Mutant]:
    """All wrong versions of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        Mutant(path, place, line, what, inside)
        for place, (line, what, _, inside) in enumerate(changes(tree))
    ]


def mutated(mutant: Mutant) -> ast.Module:
    """The module with that one change."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    _, _, change, _ = list(changes(tree))[mutant.place]
    change()
    return ast.fix_missing_locations(tree)


def changes(tree: ast.Module) -> Iterator[Possible]:
    """Every possible change of a tree, in the order of its text."""
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            yield from _of(statement, None)


def _of(node: ast.AST, inside: Span | None) -> Iterator[Possible]:
    if isinstance(node, ast.Raise | ast.JoinedStr) or _is_text(node) or _is_exported(node):
        return
    yield from ((*one, inside) for one in _here(node))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        within = _span(node) if inside is None and name == "body" else inside
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _of(child, within)


def _span(node: ast.AST) -> Span | None:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    first = min(line.lineno for line in (node, *node.decorator_list))
    return first, node.end_lineno or first


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_exported(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _here(node: ast.AST) -> Iterator[tuple[int, str, Change]]:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield _swap(node, "op", ARITHMETIC[type(op)]())
        case ast.Compare(ops=[op]):
            for other in COMPARISONS[type(op)]:
                yield _swap(node, "ops", [other()])
        case ast.BoolOp(op=op):
            yield _swap(node, "op", ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield (
                _swap(node, "op", ast.UAdd(), shown=operand)
                if not isinstance(node.op, ast.Invert | ast.Not)
                else _negated(node)
            )
        case ast.Constant(value=bool() as value):
            yield _swap(node, "value", not value)
        case ast.Constant(value=int() | float() as value):
            yield _swap(node, "value", value + 1)
            if value not in (0, 1):
                yield _swap(node, "value", 0)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield _swap(node, "value", ast.Constant(None))
        case _:
            return


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _negated(node: ast.UnaryOp) -> tuple[int, str, Change]:
    """Without its `not`, or its `~`: `not` twice for truth values, nothing for masks."""
    if isinstance(node.op, ast.Not):
        inner = ast.UnaryOp(op=ast.Not(), operand=node.operand)
        return _swap(node, "operand", inner)
    twice = ast.UnaryOp(op=ast.Invert(), operand=node.operand)
    return _swap(node, "operand", twice)


def _swap(
    node: ast.AST, field: str, other: object, *, shown: ast.AST | None = None
) -> tuple[int, str, Change]:
    before = ast.unparse(node)
    after = copy.copy(node)
    setattr(after, field, other)
    after_text = ast.unparse(shown) if shown is not None else ast.unparse(after)

    def change() -> None:
        setattr(node, field, other)

    return node.lineno, f"{before}  ->  {after_text}", change  # type: ignore[attr-defined]
