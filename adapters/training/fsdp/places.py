"""Which rectangle of a weight lies where: every rank holds one, in memory and in a save."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

Place = tuple[slice, ...]
"""A slice of the whole weight for each of its axes; empty for a number."""


@attrs.frozen
class Piece:
    """A rectangle of a weight."""

    place: Place
    shape: tuple[int, ...]
    """Of the whole weight."""


def whole(shape: Sequence[int]) -> Piece:
    """All of a weight."""
    return Piece(tuple(slice(0, length) for length in shape), tuple(shape))


def cut(place: Place, axis: int, rank: int, ranks: int) -> Place:
    """One rank's consecutive part of a place along an axis, as torch cuts shards."""
    along = place[axis]
    chunk = -(-(along.stop - along.start) // ranks)
    first = min(along.stop, along.start + rank * chunk)
    part = slice(first, min(along.stop, first + chunk))
    return (*place[:axis], part, *place[axis + 1 :])


def meeting(one: Place, other: Place) -> Place | None:
    """What two places have in common; None: nothing."""
    both = tuple(
        slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)
    )
    return None if any(part.start >= part.stop for part in both) else both


def within(place: Place, whole: Place) -> Place:
    """A place, counted from the beginning of one that holds it."""
    return tuple(
        slice(a.start - b.start, a.stop - b.start) for a, b in zip(place, whole, strict=True)
    )


def placed(starts: Sequence[int] | None, shape: Sequence[int]) -> Place:
    """Where a part of this shape belongs: at the beginning, if nothing is said."""
    first = starts or [0] * len(shape)
    return tuple(slice(a, a + length) for a, length in zip(first, shape, strict=True))


def extent(places: Sequence[Place]) -> tuple[int, ...]:
    """The shape of what these places make up together."""
    return tuple(max(along.stop for along in axis) for axis in zip(*places, strict=True))
