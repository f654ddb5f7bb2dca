"""Faults inside functions, tried without importing anything again.

All tests are collected once, with the modules as they are; a first run notes which test calls which
function. A fault inside a function is tried in a fork of that process: the function's code is
replaced where it lies, and the tests that call it run, the nearest and quickest first, until one
fails. A test that does not call the function cannot see the fault. What was computed while modules
and tests were imported keeps its value: `is_called_early` tells where that may hide a fault.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import attrs
import pytest
from mutants import Mutant, mutated

OPTIONS = (
    *("-q", "-s", "-p", "no:cacheprovider", "-m", "not slow and not demo", "--timeout", "0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # hypothesis is here already
)
"""Of every session: output is thrown away, and processes have limits of their own."""
GRACE_SECONDS, TIMES_AS_LONG = 20, 5
"""CPU seconds of one test under a fault: so many, and so many times its own."""
BROKEN = 3
"""Ends a process whose fault could not be put in place."""
PATIENCE_SECONDS = 1800
"""Wall seconds of one fault, for what waits for ever."""


@attrs.frozen
class Result:
    """Of one fault, or of the run without one."""

    place: int
    """In the list of faults; -1 for the run without one."""
    is_found: bool
    is_called_early: bool
    """Whether the function was called while modules and tests were imported."""


@attrs.frozen
class Called:
    """What one test calls."""

    seconds: float
    lines: frozenset[tuple[str, int]]
    """Files, and first lines of code in them."""


class Noted:
    """Notes the functions below a folder that are called."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.lines = str(folder), set[tuple[str, int]]()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """As `sys.setprofile` wants it."""
        if event == "call" and (code := frame.f_code).co_filename.startswith(self._folder):
            self.lines.add((code.co_filename, code.co_firstlineno))


def results(
    faults: Sequence[Mutant], *, domain: Path, tests: Path, workers: int
) -> Iterator[Result]:
    """One for the run without a fault, which must be found to pass, then one for each fault.

    Args: domain: the folder as it is imported; tests: those that are tried.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            silence()
            session = Trials(faults, domain=domain, workers=workers, out=writing)
            pytest.main([*OPTIONS, str(tests)], plugins=[session])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        for line in lines:
            yield Result(*json.loads(line))
    os.waitpid(child, 0)


class Unshrunk:
    """A plugin: a failing example is enough, neither made smaller nor kept for another fault."""

    def pytest_sessionstart(self) -> None:
        """Before any test is imported, after the settings of all tests."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        own = settings.get_profile("hexpo")
        settings.register_profile("mutation", own, phases=phases, database=None)
        settings.load_profile("mutation")


class Trials(Unshrunk):
    """A plugin that collects as usual and then tries faults instead of running tests once."""

    def __init__(self, faults: Sequence[Mutant], *, domain: Path, workers: int, out: int) -> None:
        self._faults, self._domain, self._workers, self._out = faults, domain, workers, out
        self._early = Noted(domain)

    def pytest_sessionstart(self) -> None:
        """Before any module of hexpo is imported."""
        super().pytest_sessionstart()
        sys.setprofile(self._early)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """The whole run."""
        sys.setprofile(None)
        called = _called(session, self._domain)
        self._say(-1, is_found=called is None)
        if called is not None:
            functions = _functions(self._domain)
            gc.freeze()
            self._try_all(session, called, functions)
        return True

    def _try_all(
        self,
        session: pytest.Session,
        called: Sequence[Called],
        functions: Mapping[str, Sequence[FunctionType]],
    ) -> None:
        waiting, running = list(range(len(self._faults)))[::-1], dict[int, tuple[int, float]]()
        while waiting or running:
            while waiting and len(running) < self._workers:
                place = waiting.pop()
                fault = self._faults[place]
                file = self._file_of(fault)
                tests = _tests_of(fault, file, session.items, called)
                child = os.fork()
                if child == 0:
                    _try(session, fault, functions[file], tests, called)
                running[child] = place, time.monotonic() + PATIENCE_SECONDS
            for child, (place, end) in list(running.items()):
                done, status = os.waitpid(child, os.WNOHANG)
                if not done and time.monotonic() > end:
                    os.kill(child, 9)
                    done, status = os.waitpid(child, 0)
                if done:
                    del running[child]
                    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == BROKEN:
                        raise RuntimeError(f"cannot be put in place: {self._faults[place]}")
                    self._say(place, is_found=status != 0)
            time.sleep(0.01)

    def _file_of(self, fault: Mutant) -> str:
        return str(self._domain / fault.path.relative_to(self._domain.resolve()))

    def _say(self, place: int, *, is_found: bool) -> None:
        early = False
        if place >= 0:
            fault = self._faults[place]
            early = _is_called(fault, self._file_of(fault), self._early.lines)
        os.write(self._out, f"{json.dumps([place, is_found, early])}\n".encode())


def silence() -> None:
    """Throw away all that this process prints."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _called(session: pytest.Session, folder: Path) -> list[Called] | None:
    """What each collected test calls; None where one fails. The tests run in a fork."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with os.fdopen(writing, "w") as out:
                for place, seconds, lines in _noting(session, folder):
                    out.write(f"{json.dumps([place, seconds, sorted(lines)])}\n")
            code = int(session.testsfailed > 0)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = [json.loads(line) for line in lines]
    _, status = os.waitpid(child, 0)
    if status != 0 or len(found) != len(session.items):
        return None
    return [
        Called(seconds, frozenset((file, line) for file, line in lines))
        for _, seconds, lines in found
    ]


def _noting(
    session: pytest.Session, folder: Path
) -> Iterator[tuple[int, float, set[tuple[str, int]]]]:
    for place, item in enumerate(session.items):
        noted, start = Noted(folder), time.process_time()
        sys.setprofile(noted)
        following = session.items[place + 1] if place + 1 < len(session.items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        sys.setprofile(None)
        yield place, time.process_time() - start, noted.lines


def _is_called(fault: Mutant, file: str, lines: Set[tuple[str, int]]) -> bool:
    if fault.inside is None:
        return True
    first, last = fault.inside
    return any((file, line) in lines for line in range(first, last + 1))


def _tests_of(
    fault: Mutant, file: str, items: Sequence[pytest.Item], called: Sequence[Called]
) -> list[int]:
    """Places of the tests that call the function: those of its own folder first, then the quick."""

    def order(place: int) -> tuple[bool, bool, float]:
        test = items[place].path
        is_near = test.parent.name == fault.path.parent.name
        return not is_near, fault.path.stem not in test.name, called[place].seconds

    return sorted(
        (place for place, each in enumerate(called) if _is_called(fault, file, each.lines)),
        key=order,
    )


def _functions(folder: Path) -> dict[str, list[FunctionType]]:
    """All live functions by the file that they are written in, whatever holds them."""
    found: dict[str, list[FunctionType]] = {str(path): [] for path in folder.rglob("*.py")}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in found:
            found[one.__code__.co_filename].append(one)
    return found


def _try(
    session: pytest.Session,
    fault: Mutant,
    functions: Sequence[FunctionType],
    tests: Sequence[int],
    called: Sequence[Called],
) -> None:
    """In the child: never returns."""
    code = BROKEN
    try:
        _replace(fault, functions)
        code = 1
        for number, place in enumerate(tests):
            _limit(GRACE_SECONDS + TIMES_AS_LONG * called[place].seconds)
            following: Any = [*tests, None][number + 1]
            item = session.items[place]
            item.config.hook.pytest_runtest_protocol(
                item=item, nextitem=None if following is None else session.items[following]
            )
            if session.testsfailed:
                break
        code = int(session.testsfailed > 0)
    finally:
        os._exit(code)


def _replace(fault: Mutant, functions: Sequence[FunctionType]) -> None:
    """Give every live function that lies around the fault its wrong code."""
    assert fault.inside is not None
    first, last = fault.inside
    whole = compile(mutated(fault), str(fault.path), "exec")
    wrong = {(code.co_qualname, code.co_firstlineno): code for code in _codes(whole)}
    for function in functions:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        if first <= key[1] <= last:
            function.__code__ = wrong[key]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _limit(seconds: float) -> None:
    """End this process once it has used so much more CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))
