"""How the sources are written: what a program can check of it. Each failure lists every place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("domain", "application", "adapters", "infrastructure", "entrypoints")

MOST_LINES = 400
MOST_FUNCTION_LINES = 60
NAMELESS = {"utils", "util", "helpers", "common", "manager", "managers", "base", "misc"}
READERS_OF_THE_ENVIRONMENT = (
    "adapters/platform/",
    "infrastructure/process.py",
    "entrypoints/testing/platform.py",  # shows that a platform changes nothing by being asked
)
MUTABLE_CALLS = {
    "list",
    "dict",
    "set",
    "defaultdict",
    "deque",
    "OrderedDict",
    "Counter",
    "bytearray",
}
READ_ONLY = {"Mapping", "Sequence", "Collection", "Iterable", "frozenset", "tuple", "Final"}


@attrs.frozen(eq=False)
class Source:
    """One Python file."""

    name: str
    """Its path in the repository."""
    lines: list[str]
    tree: ast.Module
    nodes: list[ast.AST]
    """All of the tree: walking it once a test took seconds."""

    def at(self, node: ast.AST) -> str:
        """Where a node is, and its line."""
        number = getattr(node, "lineno", 1)
        return f"{self.name}:{number}: {self.lines[number - 1].strip()}"


def _parse(path: Path) -> Source:
    text = path.read_text()
    tree = ast.parse(text)
    name = path.relative_to(ROOT).as_posix()
    return Source(name, text.splitlines(), tree, list(ast.walk(tree)))


@cache
def _layers() -> tuple[Source, ...]:
    return tuple(_parse(path) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py")))


@cache
def _tests() -> tuple[Source, ...]:
    return tuple(_parse(path) for path in sorted((ROOT / "tests").rglob("*.py")))


def _functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _list(found: list[str]) -> str:
    return "\n".join(["", *found])


def test_only_entrypoints_print() -> None:
    """Libraries log; numbers go through the tracker."""
    found = [
        source.at(node)
        for source in _layers()
        if not source.name.startswith("entrypoints/")
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not found, _list(found)


def test_nothing_is_asserted_outside_tests() -> None:
    """Errors are typed; the shipped contract suites are tests."""
    found = [
        source.at(node)
        for source in _layers()
        if not source.name.startswith("entrypoints/testing/")
        for node in source.nodes
        if isinstance(node, ast.Assert)
    ]
    assert not found, _list(found)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    broad = {"Exception", "BaseException"}
    return caught is None or any(isinstance(n, ast.Name) and n.id in broad for n in names)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def test_a_broad_except_raises_again_or_says_why_not() -> None:
    """Only the place that turns a failure into a value; its comment says why."""
    found = []
    for source in _layers():
        for node in source.nodes:
            if not isinstance(node, ast.ExceptHandler) or not _is_broad(node):
                continue
            _, marked, why = source.lines[node.lineno - 1].partition("noqa: BLE001")
            if not _raises_again(node) and (not marked or len(why.strip()) < 10):
                found.append(source.at(node))
    assert not found, _list(found)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in MUTABLE_CALLS
    )


def _is_read_only(annotation: ast.expr) -> bool:
    named = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(named, ast.Name) and named.id in READ_ONLY


def test_no_module_holds_state() -> None:
    """No registry: a table in plain sight is annotated as a Mapping, a Sequence, ..."""
    found = []
    for source in _layers():
        for node in source.tree.body:
            if isinstance(node, ast.Assign) and _is_mutable(node.value):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names - {"__all__"}:
                    found.append(source.at(node))
            if isinstance(node, ast.AnnAssign) and _is_mutable(node.value):
                if not _is_read_only(node.annotation):
                    found.append(source.at(node))
        found += [source.at(node) for node in source.nodes if isinstance(node, ast.Global)]
    assert not found, _list(found)


def test_files_fit_one_idea() -> None:
    """Mostly 50 to 250 lines; tests and benchmarks too."""
    lengths = {source.name: len(source.lines) for source in (*_layers(), *_tests())}
    long = {name: length for name, length in lengths.items() if length > MOST_LINES}
    long |= {n: length for n, length in lengths.items() if n.startswith("domain/") and length > 300}
    assert long == {}


def test_functions_fit_one_screen() -> None:
    """Docstring included."""
    found = [
        f"{source.name}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for source in _layers()
        for node in _functions(source)
        if node.end_lineno is not None and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    ]
    assert not found, _list(found)


def test_modules_are_named_after_an_idea() -> None:
    """A thing that has no better name has no home yet."""
    found = [source.name for source in _layers() if NAMELESS & set(Path(source.name).parts)]
    found += [source.name for source in _layers() if Path(source.name).stem in NAMELESS]
    assert not found, _list(found)


def _inits() -> list[Source]:
    return [source for source in _layers() if source.name.endswith("__init__.py")]


@pytest.mark.parametrize("source", _inits(), ids=lambda source: source.name)
def test_a_folder_exports_what_it_imports_and_does_nothing_else(source: Source) -> None:
    """Docstring, imports and a right `__all__`."""
    body = source.tree.body
    assert ast.get_docstring(source.tree), "the folder has no docstring"
    exported: list[str] = []
    imported: set[str] = set()
    for node in body[1:]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if getattr(node, "module", None) != "__future__":
                imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
        else:
            pytest.fail(f"not a docstring, import or __all__: {source.at(node)}")
    assert set(exported) == imported
    assert len(exported) == len(set(exported))


def test_every_layer_folder_is_a_package() -> None:
    """A forgotten `__init__` hides a folder from the import contracts."""
    found = [
        path.relative_to(ROOT).as_posix()
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*"))
        if path.is_dir() and any(path.glob("*.py")) and not (path / "__init__.py").is_file()
    ]
    assert not found, _list(found)


def _is_documented(body: list[ast.stmt], place: int) -> bool:
    after = body[place + 1] if place + 1 < len(body) else None
    return isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)


def test_every_setting_has_a_line_of_documentation() -> None:
    """Fields of every `Config`: the documentation page is made from them."""
    found = [
        source.at(field)
        for source in _layers()
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and node.name == "Config"
        for place, field in enumerate(node.body)
        if isinstance(field, ast.AnnAssign) and not _is_documented(node.body, place)
    ]
    assert not found, _list(found)


def test_every_member_of_an_enum_has_a_line_of_documentation() -> None:
    """One line under it."""
    found = [
        source.at(member)
        for source in _layers()
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(parent).endswith(("Enum", "Flag")) for parent in node.bases)
        for place, member in enumerate(node.body)
        if isinstance(member, ast.Assign) and not _is_documented(node.body, place)
    ]
    assert not found, _list(found)


def test_only_platforms_and_the_launcher_read_the_environment() -> None:
    """Settings come from the configuration."""
    found = [
        source.at(node)
        for source in _layers()
        if not source.name.startswith(READERS_OF_THE_ENVIRONMENT)
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "getenv", "putenv"}
        and ast.unparse(node.value) == "os"
    ]
    assert not found, _list(found)


def test_every_test_says_what_it_shows() -> None:
    """A docstring: the invariant, the case or the behaviour."""
    found = [
        source.at(node)
        for source in _tests()
        for node in _functions(source)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not found, _list(found)


def test_tests_are_plain_functions() -> None:
    """No test class."""
    found = [
        source.at(node)
        for source in _tests()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
    ]
    assert not found, _list(found)
