"""How many groups may be alive, so that no token trains at a higher age than allowed."""

from __future__ import annotations

import math

import attrs

from hexpo.domain.errors import WrongValue


@attrs.frozen(kw_only=True)
class Plan:
    """The numbers that a gate keeps. Build with `plan`."""

    groups: int
    """P: groups of one publication, all its optimizer steps together."""
    capacity: int
    """B: groups that may be alive or trained but not yet published."""
    window: int | None
    """w: groups younger than the oldest one by less than this may be trained; None: any."""
    max_age: int
    """Versions between a group's admission and its use, at most."""


def cut_evenly(groups: int, parts: int) -> list[int]:
    """Sizes of the parts that so many groups are cut into, the larger ones first; at most one
    part a group."""
    parts = max(1, min(parts, groups))
    whole, more = divmod(groups, parts)
    return [whole + (place < more) for place in range(parts)]


def worst_age(*, groups: int, capacity: int, window: int) -> int:
    """The highest age at use that any schedule can reach.

    floor((B + w - 2) / P); 0 where B = P, since then all of them must be used. Proof: at its
    admission at most B - 1 others are alive or unpublished, and until its use every group that is
    trained is one of those or one of the w - 1 that may pass it; each version uses P.
    """
    return 0 if capacity <= groups else (capacity + window - 2) // groups


def _capacity(groups: int, max_staleness: float, window: int | None) -> int:
    # rounded first: 1.1 groups times 10 must not lose one to binary fractions
    whole = groups + math.floor(round(max_staleness * groups, 9))
    if window is None or whole == groups:
        return whole
    return min(whole, (math.ceil(max_staleness) + 1) * groups - window + 1)


def plan(*, groups: int, max_staleness: float, window: int | None = 1) -> Plan:
    """A gate's numbers from what a user asks for.

    B = floor((1 + K) P), lowered for a window so that floor((B + w - 2) / P) <= ceil(K). With a
    fractional K the bound on age is ceil(K), and fewer tokens reach it than with ceil(K) itself.

    Args: groups: P. max_staleness: K, in versions; 0 is on-policy.
        window: 1 is order of submission; None is order of completion, where the bound holds only
            because overdue groups are dropped at each publication.
    Raises: WrongValue: a value outside its range, or a window so wide that nothing could be
        generated ahead; names the largest that fits.
    """
    if groups < 1:
        raise WrongValue(f"a publication of {groups} groups trains nothing; ask for at least 1")
    if not 0 <= max_staleness < math.inf:
        raise WrongValue(f"max_staleness is {max_staleness}; it must be 0 or more, and finite")
    if window is not None and window < 1:
        raise WrongValue(f"a window of {window} lets no group through; 1 is order of submission")
    capacity = _capacity(groups, max_staleness, window)
    ageing = _capacity(groups, max_staleness, None) > groups
    if window is not None and ageing and capacity <= groups:
        largest = largest_window(groups=groups, max_staleness=max_staleness)
        raise WrongValue(
            f"a window of {window} groups cannot keep max_staleness {max_staleness} with {groups}"
            f" groups a publication; the largest window that fits is {largest}"
        )
    return Plan(groups=groups, capacity=capacity, window=window, max_age=math.ceil(max_staleness))


def largest_window(*, groups: int, max_staleness: float) -> int:
    """The widest window that `plan` accepts: one group more than a publication may be alive."""
    return max(1, math.ceil(max_staleness)) * groups


def balanced_window(*, groups: int, max_staleness: float) -> int:
    """The window that is as wide as the groups that it leaves alive.

    A narrower one lets fewer pass the oldest group; a wider one keeps fewer alive, so that tokens
    are younger on average, under the same bound.
    """
    versions = max(1, math.ceil(max_staleness)) + 1
    return min(_capacity(groups, max_staleness, None), (versions * groups + 1) // 2)
