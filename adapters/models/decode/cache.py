"""The key-value cache: blocks of 32 tokens, shared by sequences that begin alike."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.kernels.cached import BLOCK

FIRST_BLOCKS = 64
KEPT_BYTES = 2**29
"""A pool up to this size outlives `clear`: new memory costs more than the steps that use it."""


@attrs.define(eq=False)
class Lane:
    """One cached sequence."""

    blocks: list[int] = attrs.field(factory=list)
    length: int = 0
    """Tokens in the cache."""
    is_open: bool = True
    state: object = None
    """Whatever else a decoder keeps for a sequence."""


class BlockCache:
    """Keys and values of all layers, in blocks that are copied when a shared one is written.

    A layer's blocks lie together: those of sequences that began together are read in place. The
    pool grows by doubling.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._layers = layers
        self._shapes = ((kv_heads, head_dim, BLOCK), (kv_heads, BLOCK, head_dim))
        self._dtype, self._device = dtype, device
        self._largest = FIRST_BLOCKS
        self._keys, self._values = (self._zeros(0, shape) for shape in self._shapes)
        self._users: list[int] = []
        self._free: list[int] = []

    def clear(self) -> None:
        """Forget every sequence; a large pool gives its memory back, and starts as large again."""
        size = len(self._users)
        if 2 * self._keys.nbytes > KEPT_BYTES:
            self._keys, self._values = (self._zeros(0, shape) for shape in self._shapes)
            size = 0
        self._users = [0] * size
        self._free = list(range(size - 1, -1, -1))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys (blocks, kv_heads, head_dim, 32) and values (blocks, kv_heads, 32, head_dim)."""
        return self._keys[index], self._values[index]

    @property
    def layers(self) -> tuple[Tensor, Tensor]:
        """The same of all layers: (layers, blocks, ...)."""
        return self._keys, self._values

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return len(self._users) - len(self._free)

    def fork(self, lane: Lane, length: int) -> Lane:
        """A sequence that shares the blocks of another one's first `length` tokens."""
        blocks = lane.blocks[: -(-length // BLOCK)]
        for block in blocks:
            self._users[block] += 1
        return Lane(list(blocks), length)

    def close(self, lane: Lane) -> None:
        """Give a sequence's blocks back."""
        if not lane.is_open:
            return
        lane.is_open = False
        for block in reversed(lane.blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)
        lane.blocks.clear()

    def extend(self, lanes: Sequence[Lane], counts: Sequence[int]) -> None:
        """Make room for `counts` more tokens in each sequence; none of them is shared there.
        Lengths are raised."""
        self._reserve(sum(map(self._missing, lanes, counts)))
        copies: list[tuple[int, int]] = []
        for lane, count in zip(lanes, counts, strict=True):
            if self._ends_shared(lane):
                last = lane.length // BLOCK
                self._users[lane.blocks[last]] -= 1
                copies.append((lane.blocks[last], self._take()))
                lane.blocks[last] = copies[-1][1]
            lane.length += count
            while len(lane.blocks) * BLOCK < lane.length:
                lane.blocks.append(self._take())
        if copies:
            sources, targets = torch.tensor(copies, device=self._keys.device).T
            self._keys[:, targets] = self._keys[:, sources]
            self._values[:, targets] = self._values[:, sources]

    def _ends_shared(self, lane: Lane) -> bool:
        """Whether the block that the next token goes to is another sequence's too."""
        last, place = divmod(lane.length, BLOCK)
        return bool(place) and self._users[lane.blocks[last]] > 1

    def _missing(self, lane: Lane, count: int) -> int:
        """Blocks that `count` more tokens take at most: new ones, and a copy of a shared one."""
        return -(-(lane.length + count) // BLOCK) - len(lane.blocks) + self._ends_shared(lane)

    def _zeros(self, blocks: int, shape: tuple[int, ...]) -> Tensor:
        size = (self._layers, blocks, *shape)
        return torch.zeros(size, dtype=self._dtype, device=self._device)

    def _take(self) -> int:
        block = self._free.pop()
        self._users[block] = 1
        return block

    def _reserve(self, need: int) -> None:
        if need <= len(self._free):
            return
        old = len(self._users)
        new = max(self._largest, 2 * old, old + need)
        self._largest = new
        for name, shape in zip(("_keys", "_values"), self._shapes, strict=True):
            grown = self._zeros(new, shape)
            grown[:, :old] = getattr(self, name)
            setattr(self, name, grown)
        self._users += [0] * (new - old)
        self._free = list(range(new - 1, old - 1, -1)) + self._free


def tables_of(lanes: Sequence[Lane], device: torch.device) -> Tensor:
    """int64 (sequences, blocks of the longest): block numbers, padded with 0."""
    width = max(len(lane.blocks) for lane in lanes)
    rows = [lane.blocks + [0] * (width - len(lane.blocks)) for lane in lanes]
    return torch.tensor(rows, dtype=torch.int64, device=device)
