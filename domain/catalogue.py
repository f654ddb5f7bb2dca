"""One entry of a catalogue of algorithms, and how a name is looked up.

A catalogue is an immutable mapping in plain sight (`losses/catalogue.py`, ...). What a listing
prints stands in the function's docstring: its second paragraph is the formula, and a line that
starts with `Source:` cites the paper.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.errors import WrongValue
from hexpo.domain.signature import Needs, needs_of

_PLAIN = (bool, int, float, str, tuple, Enum)


@attrs.frozen(kw_only=True)
class Entry:
    """One named algorithm."""

    name: str
    """The name in the configuration."""
    function: Callable[..., Any]
    unit: Unit | None = None
    """What a loss gives one number for; None for anything that is not a loss."""
    measures: Callable[..., Mapping[str, Tensor]] | None = None
    """Per-unit values whose means are metrics; takes what `function` takes."""
    default_mode: Mode | None = None
    """The aggregation that the paper uses; None: the configuration's."""
    min_samples: int = 1
    """Samples per prompt below which it means nothing; checked at configuration."""
    needs: frozenset[str] = frozenset()
    """What a run must provide beside ordinary columns: `critic`, `greedy baseline`, ..."""
    silent_at_zero_advantage: bool = False
    """Of a loss: where the advantage is 0, its gradient is exactly 0."""
    wide: frozenset[str] = frozenset()
    """Columns, without their axes, that have an axis after the row axis (a teacher's top-k)."""

    @property
    def columns(self) -> Needs:
        """Columns and options of the function, read from its signature."""
        return needs_of(self.function)

    @property
    def options(self) -> Mapping[str, Any]:
        """Names of options and their defaults; `inspect.Parameter.empty` where one is required.

        What is no plain value (a state, a function that adds over ranks) is given by the run.
        """
        return {
            name: default
            for name, default in self.columns.options.items()
            if default is inspect.Parameter.empty or default is None or isinstance(default, _PLAIN)
        }

    @property
    def summary(self) -> str:
        """First paragraph of the docstring, on one line."""
        return _paragraph(self.function, 0)

    @property
    def formula(self) -> str:
        """Second paragraph of the docstring, on one line."""
        return _paragraph(self.function, 1)

    @property
    def source(self) -> str:
        """What follows `Source:` in the docstring; empty where nothing is cited."""
        for paragraph in _paragraphs(self.function):
            if paragraph.startswith("Source:"):
                return paragraph.removeprefix("Source:").strip().removesuffix(".")
        return ""

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse options that the function does not take, lacks or calls meaningless.

        The values are tried on columns without a row, which every function accepts.
        Raises: WrongValue: names the option and the nearest valid name, or the range.
        """
        for name in options:
            if name not in self.options:
                raise WrongValue(
                    f"{self.name} has no option {name!r}{did_you_mean(name, self.options)}"
                )
        empty = inspect.Parameter.empty
        if missing := [
            name
            for name, default in self.options.items()
            if default is empty and name not in options
        ]:
            raise WrongValue(f"{self.name} needs the option {', '.join(missing)}")
        columns = self.columns
        nothing = {f"{name}_T": self._nothing(name) for name in columns.tokens}
        nothing |= {f"{name}_S": self._nothing(name) for name in columns.sequences}
        self.function(**nothing, **options)

    def _nothing(self, name: str) -> Tensor:
        whole = name in {"owner", "group", "actions", "trained", "length", "version", "role", "id"}
        flag = name in {"chosen", "covariant", "scored", "action"}
        dtype = torch.int64 if whole else torch.bool if flag else torch.float32
        return torch.zeros((0, 2) if name in self.wide else (0,), dtype=dtype)


@attrs.frozen(kw_only=True)
class Elsewhere:
    """What a name of another library means here."""

    hint: str
    """One sentence for the reader of the message."""
    means: str | None = None
    """The name here; None: there is no equivalent, so it is refused with the hint."""
    mode: Mode | None = None
    """The aggregation that belongs to the name."""


def by_name(*entries: Entry) -> Mapping[str, Entry]:
    """An immutable catalogue. Raises WrongValue for a name given twice."""
    named = {entry.name: entry for entry in entries}
    if len(named) != len(entries):
        twice = sorted({e.name for e in entries if sum(o.name == e.name for o in entries) > 1})
        raise WrongValue(f"given twice in one catalogue: {', '.join(twice)}")
    return MappingProxyType(named)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest valid ones, or all of them."""
    known = sorted(set(names))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.55)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are: {', '.join(known)}" if known else "; there is none"


def find(
    name: str,
    catalogue: Mapping[str, Entry],
    *,
    what: str,
    elsewhere: Mapping[str, Elsewhere] = MappingProxyType({}),
) -> Entry:
    """The entry of a name, or of the name that another library gives it.

    Args: what: the kind of thing, for the message: "policy loss", "KL estimator".
    Raises: WrongValue: unknown, with the nearest valid names; or refused, with the reason.
    """
    if name in catalogue:
        return catalogue[name]
    if name in elsewhere:
        foreign = elsewhere[name]
        if foreign.means is None:
            raise WrongValue(f"{what} {name!r} is refused: {foreign.hint}")
        entry = catalogue[foreign.means]
        return entry if foreign.mode is None else attrs.evolve(entry, default_mode=foreign.mode)
    raise WrongValue(f"unknown {what} {name!r}{did_you_mean(name, [*catalogue, *elsewhere])}")


def _paragraphs(function: Callable[..., Any]) -> list[str]:
    text = inspect.getdoc(function) or ""
    text = text.replace("\nSource:", "\n\nSource:")
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _paragraph(function: Callable[..., Any], place: int) -> str:
    paragraphs = _paragraphs(function)
    return paragraphs[place] if place < len(paragraphs) else ""
