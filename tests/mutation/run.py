"""How many small faults of the domain do its tests find?

    python tests/mutation/run.py [--sample 500] [--seed 0] [--workers 2] [--all] [--again FILE]

Wrong versions of all modules are drawn evenly by a seed. Those inside a function run the tests that
call it (`inside.py`). What is evaluated while a module is imported is replaced then, in a fork of a
process with torch loaded: the tests that name the module run, and if none of them fails all others.
Prints the share that was found with its 95 % lower bound (Wilson), and every survivor; some of them
change nothing that can be observed. `--again` tries only the survivors of an earlier output, found
by their module and their text: the nearest to the earlier line.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import random
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import inside
from mutants import Mutant, mutants, mutated

ROOT = Path(__file__).resolve().parents[2]
DOMAIN, TESTS = ROOT / "domain", ROOT / "tests/domain"
PACKAGES = ROOT / ".src"
"""Where `hexpo` is imported from, so that a copy of the tree tries itself."""
LIMIT_SECONDS = 120
"""CPU seconds of one try: on a busy machine, waiting must not look like a fault that was found."""
PATIENCE = 20
"""Wall seconds for each of them, for what waits for ever."""


def main() -> None:
    """Print a line a mutant, and the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="every mutant, not a sample")
    parser.add_argument("--only", default="", help="modules whose path holds this text")
    parser.add_argument("--again", type=Path, help="an earlier output: only its survivors")
    arguments = parser.parse_args()
    _preload()
    files = sorted(path for path in DOMAIN.rglob("*.py") if path.name != "__init__.py")
    every = [one for path in files if arguments.only in str(path) for one in mutants(path)]
    drawn = every
    if arguments.again is not None:
        drawn = survivors_of(arguments.again.read_text(encoding="utf-8"), every)
    elif not arguments.all:
        drawn = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants of {len(files)} modules", flush=True)
    found = 0
    for number, (mutant, is_found) in enumerate(_tried(drawn, arguments.workers), start=1):
        found += is_found
        state = "found   " if is_found else "SURVIVED"
        print(f"{number:4} {state} {_where(mutant)}:{mutant.line}  {_what(mutant)}", flush=True)
    low = lower_bound(found, len(drawn))
    print(f"found {found} of {len(drawn)} = {found / len(drawn):.3f}, 95 % lower bound {low:.3f}")


def _tried(drawn: Sequence[Mutant], workers: int) -> Iterator[tuple[Mutant, bool]]:
    """Each, and whether it was found; in the order in which that became known."""
    within = [mutant for mutant in drawn if mutant.inside is not None]
    apart = [mutant for mutant in drawn if mutant.inside is None]
    tried = inside.results(within, domain=PACKAGES / "hexpo/domain", tests=TESTS, workers=workers)
    if next(tried).is_found:
        sys.exit("the tests fail without any mutant: run pytest tests/domain first")
    count = 0
    for result in tried:
        count += 1
        if result.is_called_early and not result.is_found:
            apart.append(within[result.place])
        else:
            yield within[result.place], result.is_found
    if count != len(within):
        sys.exit(f"only {count} of {len(within)} faults inside functions were tried")
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        yield from pool.map(_try, apart)


def survivors_of(output: str, every: Sequence[Mutant]) -> list[Mutant]:
    """The mutants that an earlier output calls survivors, each once; what is gone is left out."""
    left, chosen = list(every), []
    for where, line, what in re.findall(r"SURVIVED (\S+):(\d+)  (.*)", output):
        same = [one for one in left if (_where(one), _what(one)) == (where, what)]
        if same:
            chosen.append(min(same, key=lambda one: abs(one.line - int(line))))
            left.remove(chosen[-1])
        else:
            print(f"gone: {where}:{line}  {what}", flush=True)
    return chosen


def _where(mutant: Mutant) -> str:
    return mutant.path.relative_to(ROOT).as_posix()


def _what(mutant: Mutant) -> str:
    return mutant.what[:110].rstrip()


def lower_bound(found: int, of: int) -> float:
    """Wilson's 95 % lower bound of a share (one-sided 97.5 %)."""
    z, share = 1.959964, found / of
    middle = share + z * z / (2 * of)
    width = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - width) / (1 + z * z / of)


def tests_of(path: Path) -> list[Path]:
    """Test files that name the module: defaults first, then those of its own folder."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = path.relative_to(DOMAIN).parent
    names = _defined(path)
    chosen = []
    for test in sorted(TESTS.rglob("test_*.py")):
        text = test.read_text(encoding="utf-8")
        imported = _imported(text)
        is_near = package != Path() and test.is_relative_to(TESTS / package)
        if is_near or f"hexpo.{module}" in text or names & imported:
            chosen.append((not is_near, path.stem not in test.name, str(test), test))
    found = [test for *_, test in sorted(chosen)] or sorted(TESTS.glob("test_*.py"))
    return [TESTS / "test_defaults.py", *found]


def _defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def _imported(text: str) -> set[str]:
    return {
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hexpo.domain")
        for alias in node.names
    }


def _try(mutant: Mutant) -> tuple[Mutant, bool]:
    """Whether the tests find it: one fails, does not import, or does not end."""
    named = tests_of(mutant.path)
    others = [test for test in sorted(TESTS.rglob("test_*.py")) if test not in named]
    return mutant, _fails(mutant, named) or _fails(mutant, others, times=10)


def _fails(mutant: Mutant, tests: Sequence[Path], *, times: int = 1) -> bool:
    child = os.fork()
    if child == 0:
        _run(mutant, [str(test) for test in tests], limit=LIMIT_SECONDS * times)
    return _ended(child) != 0


def _run(mutant: Mutant, tests: Sequence[str], *, limit: int) -> None:
    """In the child: never returns."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    inside.silence()
    sys.meta_path.insert(0, _Replacing(mutant))
    code = 1
    try:
        code = int(pytest.main(["-x", *inside.OPTIONS, *tests], plugins=[inside.Unshrunk()]))
    finally:
        os._exit(min(code, 1) if code != 5 else 0)


def _ended(child: int) -> int:
    end = time.monotonic() + LIMIT_SECONDS * PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 1


class _Replacing(importlib.abc.MetaPathFinder):
    """Imports one module from its mutated tree."""

    def __init__(self, mutant: Mutant) -> None:
        parts = mutant.path.relative_to(ROOT).with_suffix("").parts
        self._name, self._mutant = ".".join(("hexpo", *parts)), mutant

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The loader, for that one name."""
        if name != self._name:
            return None
        loader = _Loader(name, self._mutant)
        return importlib.util.spec_from_file_location(name, self._mutant.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, mutant: Mutant) -> None:
        super().__init__(name, str(mutant.path))
        self._mutant = mutant

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        return compile(mutated(self._mutant), str(self._mutant.path), "exec")


def _preload() -> None:
    """What every child would load again; nothing of hexpo, whose modules are replaced."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import tensordict  # noqa: F401
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(PACKAGES))


if __name__ == "__main__":
    main()
