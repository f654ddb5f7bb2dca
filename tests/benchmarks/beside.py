"""Two sides of a comparison, each a process of its own with the same inputs on a file.

A side is a script that calls `serve`: it makes named calls from the inputs, in its own layout, and
then does as it is asked, a line of JSON at a time: time one, say its peak of memory, or save what
it returned. So both sides are timed alternately, and the memory of one is not the other's. Only the
standard library and torch are needed, so that it runs in a peer's environment too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measure import HERE, ROOT, Spent, median, peak_above, spent_by

Calls = Mapping[str, Callable[[], Any]]
Maker = Callable[[Mapping[str, Any]], Calls]
"""Makes a side's calls from the inputs; what it prepares is not timed."""


class Taken(NamedTuple):
    """What one call took."""

    spent: Spent
    """Medians over the rounds."""
    best: Spent
    """The least of each clock."""
    peak: int
    """Bytes above what stood before the call, its result included."""
    result: Any


class Side:
    """A running child; leave the context and it ends."""

    def __init__(self, python: Path | str, script: str, **variables: str) -> None:
        """Args: variables: of its environment."""
        path = f"{HERE}{os.pathsep}{ROOT / '.src'}"
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(HERE / script)],
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path} | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def ask(self, **request: str) -> Any:
        """Its answer. Raises RuntimeError: it ended."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{process.args!r} ended with {process.wait()} at {request}")
        return json.loads(answer)


def serve(makers: Mapping[str, Maker]) -> None:
    """Do as the parent asks until it closes the line."""
    import torch

    answers, sys.stdout = sys.stdout, sys.stderr
    calls: Calls = {}
    for line in sys.stdin:
        answer: Any = None
        match json.loads(line):
            case {"load": file, "kind": kind, "threads": threads}:
                torch.set_num_threads(int(threads))
                calls = makers[kind](torch.load(file, weights_only=True))
                answer = list(calls)
            case {"time": name}:
                answer = spent_by(calls[name])
            case {"peak": name}:
                answer = peak_above(calls[name])
            case {"save": name, "file": file}:
                torch.save(calls[name](), file)
        print(json.dumps(answer), file=answers, flush=True)


def compared(
    sides: Mapping[str, Side], kind: str, inputs: Path, folder: Path, *, repeats: int, threads: int
) -> dict[str, dict[str, Taken]]:
    """What each call of each side took and returned: rounds alternate between the sides."""
    names = {
        key: side.ask(load=str(inputs), kind=kind, threads=str(threads))
        for key, side in sides.items()
    }
    asked = [(key, name) for name in _in_order(names) for key in sides if name in names[key]]
    results = {}
    for number, (key, name) in enumerate(asked):  # the first, uncounted round
        file = folder / f"{kind}{number}.pt"
        sides[key].ask(save=name, file=str(file))
        results[key, name] = _loaded(file)
    spent: dict[tuple[str, str], list[Spent]] = {pair: [] for pair in asked}
    for _ in range(repeats):
        for key, name in asked:
            spent[key, name].append(Spent(*sides[key].ask(time=name)))
    peaks = {(key, name): sides[key].ask(peak=name) for key, name in asked}
    return {
        side: {
            name: Taken(
                median(spent[key, name]),
                _least(spent[key, name]),
                peaks[key, name],
                results[key, name],
            )
            for key, name in asked
            if key == side
        }
        for side in sides
    }


def _least(taken: Sequence[Spent]) -> Spent:
    return Spent(min(one.wall for one in taken), min(one.cpu for one in taken))


def _in_order(names: Mapping[str, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in names.values() for name in some))


def _loaded(file: Path) -> Any:
    import torch

    result = torch.load(file, weights_only=True)
    file.unlink()
    return result
