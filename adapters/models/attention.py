"""Causal attention of packed rows, where rows of a group may share a prefix that is run once.

Legend beside the library's: N run tokens, W width of a fused query-key-value row, R query rows,
S keys, D head size, Q query heads, K key heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hexpo.adapters.models.kernels import Kernels, causal

_ROWS = 256
"""Query rows whose probabilities exist at once; longer pieces recompute theirs in backward."""


@attrs.frozen(eq=False)
class Segment:
    """Consecutive run tokens: a prefix, then what each of its rows adds to it."""

    shared: int
    """Tokens of the prefix; 0 where the rows have nothing in common."""
    rests: tuple[int, ...]
    """Tokens of each row after the prefix."""
    places: Tensor | None
    """(sum of rests,) where each rest token lies in the (rows, longest) table; None: it is full."""

    @property
    def size(self) -> int:
        """Run tokens."""
        return self.shared + sum(self.rests)

    @staticmethod
    def of(shared: int, rests: Sequence[int]) -> Segment:
        """A segment and the places of its tokens."""
        longest = max(rests, default=0)
        if all(rest == longest for rest in rests):
            return Segment(shared, tuple(rests), None)
        places = [torch.arange(rest) + row * longest for row, rest in enumerate(rests) if rest > 0]
        return Segment(shared, tuple(rests), torch.cat(places))


def attend(
    qkv_NW: Tensor,
    segments: Sequence[Segment],
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    kernels: Kernels | None = None,
) -> Tensor:
    """Each token attends to its row's tokens up to itself, the shared prefix included.

    Args: qkv_NW: rotated queries and keys, and values: (Q + 2 K) heads of D in a row.
        kernels: compiled for these heads; None: torch alone.
    Returns: (N, Q D), in the dtype of `qkv_NW`; softmax in fp32.
    """
    library = None if kernels is None else kernels.library(qkv_NW)
    if library is not None and segments:
        return causal(library, qkv_NW, runs_of(segments), kv_heads, scale)
    head_dim = qkv_NW.shape[1] // (heads + 2 * kv_heads)
    shape = _Shape(heads, kv_heads, head_dim, scale)
    sizes = [size for segment in segments for size in (segment.shared, sum(segment.rests))]
    # One split, not a slice each: its backward is one concatenation.
    cuts = iter(torch.split(qkv_NW, sizes))
    pieces: list[Tensor] = []
    for segment, prefix, rests in zip(segments, cuts, cuts, strict=True):
        if segment.shared:
            pieces.append(_causal(prefix[None], None, shape)[0])
        if rests.shape[0]:
            pieces.append(_rests(rests, segment, prefix if segment.shared else None, shape))
    return torch.cat(pieces) if len(pieces) != 1 else pieces[0]


def runs_of(segments: Sequence[Segment]) -> Tensor:
    """(R, 4) int64: first token and tokens of each run; first token and tokens of its prefix."""
    runs: list[tuple[int, int, int, int]] = []
    start = 0
    for segment in segments:
        first = start + segment.shared
        if segment.shared:
            runs.append((start, segment.shared, 0, 0))
        for rest in segment.rests:
            if rest:
                runs.append((first, rest, start, segment.shared))
            first += rest
        start = first
    return torch.tensor(runs, dtype=torch.int64).view(-1, 4)


@attrs.frozen
class _Shape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float


def _rests(rests: Tensor, segment: Segment, prefix: Tensor | None, shape: _Shape) -> Tensor:
    rows, longest = len(segment.rests), max(segment.rests)
    if segment.places is None:
        return _causal(rests.view(rows, longest, -1), prefix, shape).flatten(0, 1)
    table = rests.new_zeros(rows * longest, rests.shape[1]).index_copy(0, segment.places, rests)
    out = _causal(table.view(rows, longest, -1), prefix, shape)
    return out.flatten(0, 1).index_select(0, segment.places)


def _causal(qkv: Tensor, prefix: Tensor | None, shape: _Shape) -> Tensor:
    """Rows (n, R, W), each continuing the same prefix (P, W): (n, R, Q D)."""
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    rows, length, _ = qkv.shape
    queries, keys, values = torch.split(qkv.view(rows, length, -1, shape.head_dim), sizes, 2)
    if prefix is not None:
        heads = prefix.view(1, len(prefix), -1, shape.head_dim)
        _, first_keys, first_values = torch.split(heads, sizes, 2)
        keys = torch.cat((first_keys.expand(rows, -1, -1, -1), keys), 1)
        values = torch.cat((first_values.expand(rows, -1, -1, -1), values), 1)
    if length <= _ROWS:
        return _block(queries, keys, values, shape.scale)
    before = keys.shape[1] - length
    blocks = []
    for first in range(0, length, _ROWS):
        last = min(length, first + _ROWS)
        seen = (keys[:, : before + last], values[:, : before + last])
        block = checkpoint(_block, queries[:, first:last], *seen, shape.scale, use_reentrant=False)
        blocks.append(block)
    return torch.cat(blocks, 1)


def _block(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """(n, R, Q, D) over (n, S, K, D), causal to the right end. The query heads that share a key
    head are rows of one product: faster than SDPA here, most of all backward."""
    rows, length, heads, head_dim = queries.shape
    seen, kv_heads = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    stacked = queries.view(rows, length, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.reshape(rows * kv_heads, group * length, head_dim)
    keys = keys.permute(0, 2, 3, 1).reshape(rows * kv_heads, head_dim, seen)
    values = values.permute(0, 2, 1, 3).reshape(rows * kv_heads, seen, head_dim)
    future = torch.full((length, seen), float("-inf"), device=queries.device)
    scores = torch.bmm(stacked, keys).view(-1, length, seen).float()
    scores = scores.mul_(scale).add_(torch.triu(future, seen - length + 1))
    weights = torch.softmax(scores, -1).to(values.dtype).view(-1, group * length, seen)
    out = torch.bmm(weights, values).view(rows, kv_heads, group, length, head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(rows, length, heads * head_dim)
