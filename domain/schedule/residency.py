"""Which model is on its devices in which phase: one table, and what it needs of memory.

Models of one device group take turns; a model that has its group for itself never moves. So
colocated and separate placement are the same table with other groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import attrs

from hexpo.domain.errors import WrongValue


class Phase(Enum):
    """What a device group does."""

    GENERATE = "generate"
    """Answers are sampled."""
    SCORE = "score"
    """Columns are filled: log-probs, values, a teacher's."""
    TRAIN = "train"
    """Gradients and optimizer steps."""
    TRANSFER = "transfer"
    """A new version reaches the rollout."""


class Part(Enum):
    """What a model is for."""

    ROLLOUT = "rollout"
    """Samples."""
    POLICY = "policy"
    """Learns, and is what the rollout gets."""
    CRITIC = "critic"
    """Learns, and fills a column."""
    SCORER = "scorer"
    """Only fills columns: a reference, a teacher, a reward model."""


TABLE: Mapping[Phase, frozenset[Part]] = {
    Phase.GENERATE: frozenset({Part.ROLLOUT}),
    Phase.SCORE: frozenset({Part.POLICY, Part.CRITIC, Part.SCORER}),
    Phase.TRAIN: frozenset({Part.POLICY, Part.CRITIC}),
    Phase.TRANSFER: frozenset({Part.POLICY, Part.ROLLOUT}),
}


def _not_negative(owner: Resident, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        raise WrongValue(f"{owner.name}.{attribute.name} is {value} bytes; it must be >= 0")


@attrs.frozen(kw_only=True)
class Resident:
    """A model and the devices that it may be on."""

    name: str
    part: Part
    group: str
    """Devices that it shares with whoever names the same group."""
    held: int = attrs.field(default=0, validator=_not_negative)
    """Bytes of a device while it is there at all: weights; of a learner gradients and optimizer."""
    working: Mapping[Phase, int] = attrs.field(factory=dict)
    """Further bytes in a phase: a rollout's cache, a learner's activations."""


@attrs.frozen(kw_only=True)
class Moves:
    """Models to move between two phases. All of `out` leave their devices before any of `into`
    comes."""

    out: tuple[str, ...]
    into: tuple[str, ...]


def present(residents: Sequence[Resident], phase: Phase) -> frozenset[str]:
    """Names of the models that are on their devices in the phase: those that `TABLE` lists for it,
    and those that have their device group to themselves."""
    tenants: dict[str, int] = {}
    for one in residents:
        tenants[one.group] = tenants.get(one.group, 0) + 1
    return frozenset(
        one.name for one in residents if tenants[one.group] == 1 or one.part in TABLE[phase]
    )


def moves(here: Iterable[str], wanted: Iterable[str]) -> Moves:
    """What has to go and to come, in the order of names."""
    now, then = frozenset(here), frozenset(wanted)
    return Moves(out=tuple(sorted(now - then)), into=tuple(sorted(then - now)))


def demand(residents: Sequence[Resident], phase: Phase, group: str) -> int:
    """Bytes of a device of the group in the phase."""
    names = present(residents, phase)
    return sum(
        one.held + one.working.get(phase, 0)
        for one in residents
        if one.group == group and one.name in names
    )


def overloads(residents: Sequence[Resident], capacity: Mapping[str, int]) -> list[str]:
    """Why the models do not fit, a sentence for each group and phase; none where they do.

    Args: capacity: bytes of a device, by group; a group without one is not checked.
    """
    found = []
    for group, room in capacity.items():
        for phase in Phase:
            needed = demand(residents, phase, group)
            if needed > room:
                found.append(
                    f"device group {group!r} cannot {phase.value}: {_words(needed)} are needed and"
                    f" {_words(room)} are there ({_addends(residents, phase, group)});"
                    f" {_advice(residents, phase, group)}"
                )
    return found


def _addends(residents: Sequence[Resident], phase: Phase, group: str) -> str:
    names = present(residents, phase)
    parts = []
    for one in residents:
        if one.group == group and one.name in names:
            parts.append(f"{one.name} {_words(one.held)}")
            if extra := one.working.get(phase, 0):
                parts[-1] += f" and {_words(extra)} to work"
    return ", ".join(parts)


def _advice(residents: Sequence[Resident], phase: Phase, group: str) -> str:
    crowd = [one for one in residents if one.group == group]
    if phase is Phase.GENERATE:
        return "give the rollout a smaller cache"
    if len(crowd) > 1 and phase is Phase.TRANSFER:
        return "train and generate on separate devices, or split the policy over more"
    return "split the models over more devices, or use smaller micro-batches"


def _words(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
