"""F6: what blocks is no call of a coroutine. ruff's ASYNC rules see sockets, processes and `open`;
here are files, whose methods they take for anybody's, and waiting for a device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKING = {
    "read_text", "write_text", "read_bytes", "write_bytes", "iterdir", "glob", "rglob", "rmtree",
    "copytree", "copyfile", "copy2", "fsync", "synchronize", "load_file", "save_file",
}  # fmt: skip
ENDS = {
    "adapters/checkpoints/local/store.py: _write",
    "adapters/cluster/local/cluster.py: _start",
    "adapters/cluster/ray/host.py: close",
    "adapters/cluster/wire/warden.py: close",
}
"""They clean up what a failure or an end left: then nothing else waits for the loop."""


def blocking(text: str) -> Iterator[tuple[str, str]]:
    """Coroutines and what blocks in them; what they hand to a thread is not called there."""
    for coroutine in ast.walk(ast.parse(text)):
        if not isinstance(coroutine, ast.AsyncFunctionDef):
            continue
        left: list[ast.AST] = list(coroutine.body)
        while left:
            node = left.pop()
            if isinstance(node, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
                continue
            left += ast.iter_child_nodes(node)
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
                left.remove(node.value)  # a coroutine of that name
                left += ast.iter_child_nodes(node.value)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in BLOCKING
            ):
                yield coroutine.name, ast.unparse(node)


def test_no_coroutine_blocks_its_event_loop() -> None:
    """F6."""
    found: list[str] = []
    for layer in ("application", "adapters", "infrastructure"):
        for path in sorted((ROOT / layer).rglob("*.py")):
            text = path.read_text()
            if "async def" not in text or not any(name in text for name in BLOCKING):
                continue
            name = path.relative_to(ROOT).as_posix()
            found += [f"{name}: {where}" for where, _ in blocking(text)]
    assert set(found) == ENDS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("async def f():\n    path.read_text()", 1),
        ("async def f():\n    x = [one.read_bytes() for one in paths]", 1),
        ("async def f():\n    await asyncio.to_thread(path.read_text)", 0),
        ("async def f():\n    await asyncio.to_thread(lambda: path.read_text())", 0),
        ("async def f():\n    await engine.synchronize()", 0),
        ("async def f():\n    await engine.put(path.read_text())", 1),
        ("def f():\n    path.read_text()", 0),
    ],
)
def test_the_rule_sees_calls_and_nothing_else(text: str, count: int) -> None:
    """It can fail."""
    assert len(list(blocking(text))) == count
