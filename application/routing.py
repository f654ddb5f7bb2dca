"""Whom the next request goes to: constant time, however many replicas and requests there are."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

SLACK = 4
"""Requests that a replica with a session's prefix may have more than the least loaded one. Answers
to one prompt are alike in length: kept together, they make one replica late for all the others."""


class LeastLoaded(Generic[T]):
    """Members in buckets of equal load. A load changes by one, so the least one is found again by
    looking at the next bucket; among equals whoever has been equal for longest is taken."""

    def __init__(self) -> None:
        self._buckets: list[dict[T, None]] = [{}]
        self._loads: dict[T, int] = {}
        self._least = 0

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, member: object) -> bool:
        return member in self._loads

    def enter(self, member: T, load: int = 0) -> None:
        """Take part, with what it has to do already. Nothing where it takes part."""
        if member not in self._loads:
            self._place(member, load)

    def leave(self, member: T) -> None:
        """Take part no longer. Nothing where it does not."""
        load = self._loads.pop(member, None)
        if load is not None:
            del self._buckets[load][member]

    def add(self, member: T, change: int) -> None:
        """Its load grew or fell. Nothing where it does not take part."""
        load = self._loads.get(member)
        if load is not None:
            self.place(member, load + change)

    def place(self, member: T, load: int) -> None:
        """A member that takes part has so much to do now."""
        del self._buckets[self._loads[member]][member]
        self._place(member, load)

    def has_room(self, member: T, *, slack: int) -> bool:
        """Whether a member takes part and has at most `slack` more to do than the least loaded."""
        load = self._loads.get(member)
        return load is not None and load - self._loads[self.least()] <= slack

    def least(self) -> T:
        """The member with the least to do. Raises LookupError: there is none."""
        if not self._loads:
            raise LookupError("no member takes part")
        while not self._buckets[self._least]:
            self._least += 1
        return next(iter(self._buckets[self._least]))

    def idlest(self, count: int) -> list[T]:
        """Up to `count` members, least loaded first. Linear in the highest load."""
        members = (member for bucket in self._buckets for member in bucket)
        return [member for _, member in zip(range(count), members, strict=False)]

    def _place(self, member: T, load: int) -> None:
        while len(self._buckets) <= load:
            self._buckets.append({})
        self._buckets[load][member] = None
        self._loads[member] = load
        self._least = min(self._least, load)
