"""Ranks that compute one micro-batch together, and what they exchange, with its gradients."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function


@attrs.frozen(kw_only=True, eq=False)
class Team:
    """The ranks of one process group; all of them make the same calls in the same order."""

    group: Any
    """A ProcessGroup."""
    rank: int
    """This one's number in it."""
    size: int

    def enter(self, x: Tensor) -> Tensor:
        """What all have alike, where each goes on with a piece of its own: gradients are summed."""
        return _Enter.apply(self.group, x)  # type: ignore[no-any-return,no-untyped-call]

    def leave(self, x: Tensor) -> Tensor:
        """The sum of the ranks' pieces, which all then have; gradients stay as they are."""
        return _Leave.apply(self.group, x)  # type: ignore[no-any-return,no-untyped-call]

    def exchange(self, x_Pnw: Tensor) -> Tensor:
        """Piece p to rank p, and from it: (P, n, w), the first axis by rank, before and after."""
        return _Exchange.apply(self.group, x_Pnw)  # type: ignore[no-any-return,no-untyped-call]

    def all(self, x: Tensor) -> Tensor:
        """(P, ...) every rank's, without gradient."""
        import torch.distributed as dist

        found = x.new_empty(self.size, *x.shape)
        dist.all_gather_into_tensor(found.flatten(0, 1), x.contiguous(), group=self.group)
        return found

    def span(self, length: int) -> slice:
        """This rank's consecutive part of a length, as torch cuts shards: the last ones may be
        shorter."""
        chunk = -(-length // self.size)
        first = min(length, self.rank * chunk)
        return slice(first, min(length, first + chunk))


def _summed(x: Tensor, group: Any) -> Tensor:
    import torch.distributed as dist

    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, x: Tensor) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _summed(gradient, ctx.group)


class _Leave(Function):
    @staticmethod
    def forward(_: Any, group: Any, x: Tensor) -> Tensor:
        return _summed(x, group)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, x_Pnw: Tensor) -> Tensor:
        ctx.group = group
        return _exchanged(x_Pnw, group)

    @staticmethod
    def backward(ctx: Any, gradient_Pnw: Tensor) -> tuple[None, Tensor]:
        return None, _exchanged(gradient_Pnw, ctx.group)


def _exchanged(x_Pnw: Tensor, group: Any) -> Tensor:
    import torch.distributed as dist

    found = torch.empty_like(x_Pnw, memory_format=torch.contiguous_format)
    dist.all_to_all_single(found, x_Pnw.contiguous(), group=group)
    return found
