"""The repository's own sources, parsed once, for the checks of this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("domain", "application", "adapters", "infrastructure", "entrypoints")

_GENERATED = {".git", ".venv", ".venv-wheel", "__pycache__", "dist", "build", "runs", "models"}
_CACHES = {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"}


@attrs.frozen(eq=False)
class Source:
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler) -> str:
        """Where a node is, as an editor understands it."""
        return f"{self.name}:{node.lineno}"


def _parse(path: Path) -> Source:
    text = path.read_text()
    return Source(path, text, ast.parse(text, filename=str(path)))


@cache
def layers() -> tuple[Source, ...]:
    """Every module of the five layers."""
    return tuple(_parse(path) for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py")))


@cache
def tests() -> tuple[Source, ...]:
    """Every test module."""
    return tuple(_parse(path) for path in sorted((ROOT / "tests").rglob("test_*.py")))


def files() -> Iterator[Path]:
    """Every text file that belongs to the repository."""
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            if path.is_symlink() or path.name in _GENERATED | _CACHES:
                continue
            if path.is_dir():
                pending.append(path)
            elif path.suffix not in {".png", ".safetensors", ".gguf", ".pt"}:
                yield path


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, inner ones too."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def classes(source: Source) -> Iterator[ast.ClassDef]:
    """Every class of a file."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            yield node
