"""Wanted against visible, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import attrs

from hexpo.application.ports.cluster import ProcessSpec, Resources
from hexpo.domain.errors import NotEnough, WrongValue

_UNITS: Mapping[str, str] = {
    "cpus": "CPUs",
    "accelerators": "accelerators",
    "memory_gib": "GiB of memory",
}
_SLACK = 1e-6


@attrs.frozen
class Unit:
    """Processes that use the same devices: one alone, or all of one `share`."""

    name: str
    needs: Resources
    """What the largest of them needs."""
    members: tuple[ProcessSpec, ...]


def units(wanted: Sequence[ProcessSpec]) -> tuple[Unit, ...]:
    """Group processes by what they share, in the order in which they are wanted.

    Raises: WrongValue: two have one name, or sharers want to lie in different groups.
    """
    names = [spec.name for spec in wanted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise WrongValue(f"processes named twice: {', '.join(twice)}; a name is unique")
    groups: dict[str, list[ProcessSpec]] = {}
    for spec in wanted:
        groups.setdefault(f"share {spec.share}" if spec.share else spec.name, []).append(spec)
    for name, members in groups.items():
        if len({spec.together for spec in members}) > 1:
            raise WrongValue(f"{name}: sharers of a device lie on one node: give one `together`")
    return tuple(
        Unit(name, largest(spec.needs for spec in members), tuple(members))
        for name, members in groups.items()
    )


def largest(needs: Iterable[Resources]) -> Resources:
    """The largest of each kind."""
    return _fold(max, needs)


def total(needs: Iterable[Resources]) -> Resources:
    """The sum of each kind."""
    return _fold(lambda left, right: left + right, needs)


def left(visible: Resources, taken: Resources) -> Resources:
    """What remains; never below nothing."""
    return _fold(lambda all_of, part: max(0.0, all_of - part), [visible, taken])


def require(wanted: Resources, free: Resources, visible: Resources, *, where: str) -> None:
    """Raises: NotEnough: more is wanted than is free; names each kind with all numbers."""
    short = [
        f"{_number(want)} {unit} wanted, {_number(there)} free of {_number(all_of)} visible"
        for name, unit in _UNITS.items()
        if (want := getattr(wanted, name)) > (there := getattr(free, name)) + _SLACK
        for all_of in [getattr(visible, name)]
    ]
    if short:
        raise NotEnough(f"{where}: {'; '.join(short)}. Ask for less, or add machines")


def over(wanted: Resources, free: Resources) -> Mapping[str, str]:
    """The kinds of which more is wanted than is free, in words."""
    return {
        name: f"{_number(want)} {unit} wanted, {_number(there)} free"
        for name, unit in _UNITS.items()
        if (want := getattr(wanted, name)) > (there := getattr(free, name)) + _SLACK
    }


def _number(value: float) -> str:
    return f"{value:.6g}"


def _fold(combine: Callable[[float, float], float], needs: Iterable[Resources]) -> Resources:
    rows = [attrs.astuple(need) for need in needs] or [attrs.astuple(Resources())]
    return Resources(
        **{
            name: reduce(combine, column)
            for name, column in zip(_UNITS, zip(*rows, strict=True), strict=True)
        }
    )
