"""Single precision sums that the gradients of a weight are added to, without autograd's detour.

Autograd gives a weight a gradient of the weight's own type, once a micro-batch; in bf16 it is
rounded, and then read again to be added. Who keeps a sum in fp32 ties it to the weight, and the
functions of `kernels` add to it as they multiply; autograd then sees no gradient of that weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

_NAME = "_hexpo_gradient_sum"


def tie_sum(weight: Tensor, sum_: Tensor | None) -> None:
    """Have gradients of `weight` added to `sum_`, (the weight's shape) fp32; None: as usual."""
    setattr(weight, _NAME, sum_)


def sum_of(weight: Tensor) -> Tensor | None:
    """The sum that is tied to this very tensor."""
    found: Tensor | None = getattr(weight, _NAME, None)
    return found


def sums_of(weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Those of several weights that take the same input; none where one has none."""
    found = [one for one in map(sum_of, weights) if one is not None]
    return tuple(found) if len(found) == len(weights) else ()
