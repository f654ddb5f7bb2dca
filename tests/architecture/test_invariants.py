"""The page that says where each invariant is shown says what is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "acceptance/README.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## The invariants of the algorithms")[2]
ROWS = re.findall(r"^\| ([A-Z]\d+) [^|]*\| (.*) \|$", SECTION, re.MULTILINE)
PROVED = [
    *(f"A{number}" for number in range(1, 9)),
    *(f"B{number}" for number in range(1, 11)),
    *(f"C{number}" for number in range(1, 12)),
    "J1",
    *(f"N{number}" for number in range(1, 5)),
    *(f"S{number}" for number in range(1, 4)),
]
"""Those of the algorithms."""


def shown_in(file: Path) -> set[str]:
    """What the docstrings of a file's tests name."""
    return {
        name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        for name in re.findall(r"\b[A-Z]\d{1,2}\b", ast.get_docstring(node) or "")
    }


def test_every_invariant_of_the_algorithms_has_a_line() -> None:
    """A1-A8, B1-B10, C1-C11, J1, N1-N4, S1-S3."""
    assert [name for name, _ in ROWS] == PROVED


@pytest.mark.parametrize(("name", "places"), ROWS, ids=[name for name, _ in ROWS])
def test_a_listed_file_names_the_invariant(name: str, places: str) -> None:
    """A page that is not checked would tell of tests that are gone."""
    files = [TESTS / place for place in re.findall(r"`([^`]+\.py)`", places)]
    assert files
    assert [str(file) for file in files if name not in shown_in(file)] == []
