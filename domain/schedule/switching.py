"""When devices that generate and train in turns should stop generating and train.

A cycle is: switch, generate for t seconds, switch, train what is finished. Training costs a time
for each token, whenever it happens, so only the rest can be saved: the share of the switches, and
of the tail in which a few long answers leave the devices idle. Tokens made for each second of
switching and generating are G(t) / (t + C); while the speed falls, that is largest where the speed
*now* has fallen to the average *so far*, the switches counted in (the marginal value theorem;
Charnov 1976): stop when G'(t) (t + C) <= G(t).
"""

from __future__ import annotations

import attrs

from hexpo.domain.errors import WrongValue


@attrs.frozen(kw_only=True)
class Cycle:
    """Generation since the last switch."""

    finished: int
    """Groups that could be trained now."""
    wanted: int
    """Groups that a training step needs."""
    running: int
    """Requests that are being answered."""
    tokens: float
    """Sampled in this cycle: G(t)."""
    seconds: float
    """Since generation began: t."""
    tokens_per_second: float
    """At the present number of running requests: G'(t)."""
    switch_seconds: float
    """There and back: sleep, onload, offload, wake, and reading again what is interrupted: C."""

    def __attrs_post_init__(self) -> None:
        for name in ("tokens", "seconds", "tokens_per_second", "switch_seconds"):
            if not getattr(self, name) >= 0:
                raise WrongValue(f"cycle.{name} is {getattr(self, name)}; it must be >= 0")


def should_train(cycle: Cycle) -> bool:
    """Whether to stop generating now: never before a step's groups are finished, always when
    nothing runs, and in between when the speed has fallen below the cycle's average.

    With `max_staleness` 0 nothing runs any more when the batch is complete, so the rule is "when
    the batch is complete".
    """
    if cycle.finished < cycle.wanted:
        return False
    if not cycle.running:
        return True
    return cycle.tokens_per_second * (cycle.seconds + cycle.switch_seconds) <= cycle.tokens
