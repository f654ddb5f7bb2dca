"""Port: how a version reaches the rollout.

A transfer has three parts: the driver's protocol (`WeightTransfer`), a sender beside every rank
that trains, and a receiver inside every engine's process. What they tell each other is an
`Update`: a plain value that says where the weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs
from torch import Tensor

from hexpo.domain.digest import Digest as Digest
from hexpo.domain.metrics import Metrics


@attrs.frozen(kw_only=True)
class Update:
    """One version on its way. Plain: it crosses processes."""

    version: int
    address: Mapping[str, Any] = attrs.field(factory=dict)
    """Where the weights are, in the transfer's own words (a folder, a group's rendezvous)."""


@attrs.frozen(kw_only=True, eq=False)
class Weight:
    """A piece of a tensor under the name that an exported model gives it."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    tensor: Tensor
    """The local part, in the type that is sent."""
    start: int = 0
    """Where the part begins in the first dimension; parts of one tensor follow each other."""


Send = Callable[[Iterable[Weight], Update], Digest]
"""A sender: reads the stream once, in its order, and puts it where the update says. Runs in the
process that holds the weights, in the thread that computes there."""


class Receive(Protocol):
    """A receiver: whole tensors by name, each valid until the next one is asked for."""

    def __call__(self, update: Update, *, keep: bool = False) -> Iterable[tuple[str, Tensor]]:
        """Read an update. Args: keep: each tensor stays as it is for as long as somebody
        holds it or a view of it."""
        ...


class WeightTransfer(Protocol):
    """Moves the trainer's present weights to every rollout replica.

    Promises: returns after *all* replicas that are not fenced confirmed what was sent; only then
    does the version count.
    Raises: EngineFailed: names the replica that did not confirm within the bound, or whose
    checksum differs.
    Cancellation: replicas are left paused and without a valid version.
    """

    async def transfer(self, version: int) -> Metrics:
        """Move `version`. Call while the rollout is paused."""
        ...
