"""Cached decoding in torch: the twin of `decode.c`, and what runs without a compiler.

All in fp32: a processor multiplies few rows by many small blocks fastest so, and what a cache in
bf16 would save is spent on bringing its blocks into order for each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from hexpo.adapters.models.kernels.eager import rms_norm_rstd

BLOCK = 32
"""Tokens of one cache block, as in `decode.c`."""
FEW = 8
"""Copies of slices up to here are quicker than one copy by index."""


@attrs.frozen(kw_only=True, eq=False)
class Column:
    """The blocks that hold the same 32 places of each row."""

    blocks: slice | Tensor
    """Numbers; a slice where they follow each other, so that they are read in place."""
    sharing: int
    """Neighbouring rows that read one block, so that it is read once for all."""

    def times(self, x_RKHE: Tensor, pool: Tensor) -> Tensor:
        """Each row's vectors times its block. Args: x_RKHE: rows, key-value heads, query heads of
        one, width. pool: (blocks, K, width E, width F). Returns: (R, K, H, F)."""
        heads, group, width = x_RKHE.shape[1:]
        x = x_RKHE.reshape(-1, self.sharing, heads, group, width).transpose(1, 2)
        blocks = (
            pool[self.blocks]
            if isinstance(self.blocks, slice)
            else pool.index_select(0, self.blocks)
        )
        y = torch.bmm(x.reshape(-1, self.sharing * group, width), blocks.flatten(0, 1).to(x.dtype))
        return y.view(-1, heads, self.sharing, group, y.shape[-1]).transpose(1, 2).flatten(0, 1)


@attrs.frozen(kw_only=True, eq=False)
class Places:
    """Where the rows of a pass stand in their sequences; made once for all layers."""

    tables: Tensor
    """int64 (sequences, blocks of the longest): block numbers of each sequence."""
    sequences_R: Tensor
    """int64: which line of `tables`."""
    positions_R: Tensor
    """int64: which place in it."""
    cos: Tensor
    """fp32 (positions, head_dim / 2), as `rope_tables` gives; `sin` alike."""
    sin: Tensor
    alone: bool = False
    """Each row is the only one of its sequence, which is quicker."""

    @cached_property
    def turns(self) -> tuple[Tensor, Tensor]:
        """What a head is multiplied by, and its other half: (R, 1, head_dim) each."""
        cos, sin = self.cos[self.positions_R], self.sin[self.positions_R]
        return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]

    @cached_property
    def written(self) -> tuple[Tensor, Tensor]:
        """Block and place in it of each row's own key."""
        blocks_R = self.tables[self.sequences_R, self.positions_R // BLOCK]
        return blocks_R, self.positions_R % BLOCK

    @cached_property
    def slices(self) -> list[tuple[slice, slice, int]]:
        """The same where rows follow each other: rows, their blocks, place in these."""
        blocks, places = (x.tolist() for x in self.written)
        runs: list[tuple[int, int]] = []
        for row in range(len(blocks)):
            follows = row and blocks[row] == blocks[row - 1] + 1 and places[row] == places[row - 1]
            start = runs.pop()[0] if follows else row
            runs.append((start, row + 1))
        return [(slice(a, b), slice(blocks[a], blocks[a] + b - a), places[a]) for a, b in runs]

    @cached_property
    def columns(self) -> list[Column]:
        """Of rows that are alone: all blocks up to the longest."""
        count = int(self.positions_R.max()) // BLOCK + 1
        numbers = self.tables[self.sequences_R, :count].T.tolist()
        return [_column(one, self.tables.device) for one in numbers]

    @cached_property
    def hidden(self) -> Tensor:
        """Of rows that are alone: bool (R, 1, 1, places of all columns), what lies behind each."""
        places = torch.arange(len(self.columns) * BLOCK, device=self.positions_R.device)
        return (places > self.positions_R[:, None])[:, None, None]

    @cached_property
    def parts(self) -> tuple[tuple[Tensor, Places] | None, list[tuple[int, Tensor]]]:
        """Rows that are alone in their sequence, with their own places; then each other sequence
        and its rows."""
        counts_S = torch.bincount(self.sequences_R, minlength=len(self.tables))
        single = (counts_S[self.sequences_R] == 1).nonzero()[:, 0]
        own = attrs.evolve(
            self,
            sequences_R=self.sequences_R[single],
            positions_R=self.positions_R[single],
            alone=True,
        )
        several = (counts_S > 1).nonzero()[:, 0].tolist()
        rows = [(one, (self.sequences_R == one).nonzero()[:, 0]) for one in several]
        return (single, own) if len(single) else None, rows


def cached_attention(
    qkv_RW: Tensor,
    keys: Tensor,
    values: Tensor,
    places: Places,
    q_norm_D: Tensor | None,
    k_norm_D: Tensor | None,
    eps: float,
) -> Tensor:
    """See `Kernels.cached_attention`; here `qkv_RW` stays as it is."""
    kv_heads, head_dim = keys.shape[1:3]
    qkv_RWD = qkv_RW.view(len(qkv_RW), -1, head_dim)
    queries = qkv_RWD.shape[1] - 2 * kv_heads
    q_RQD, k_RKD, v_RKD = torch.split(qkv_RWD, [queries, kv_heads, kv_heads], 1)
    q_RQD = _turned(q_RQD, q_norm_D, places, eps).float().mul_(head_dim**-0.5)
    _write(_turned(k_RKD, k_norm_D, places, eps), v_RKD, keys, values, places)
    if places.alone:
        return _attend_alone(q_RQD, keys, values, places).to(qkv_RW.dtype).view(len(q_RQD), -1)
    out_RQD = torch.empty_like(q_RQD)
    single, several = places.parts
    if single is not None:
        rows, own = single
        out_RQD[rows] = _attend_alone(q_RQD[rows], keys, values, own)
    for sequence, rows in several:
        seen = (places.tables[sequence], places.positions_R[rows])
        out_RQD[rows] = _attend_together(q_RQD[rows], keys, values, *seen)
    return out_RQD.to(qkv_RW.dtype).view(len(q_RQD), -1)


def _turned(x_RWD: Tensor, norm_D: Tensor | None, places: Places, eps: float) -> Tensor:
    """Heads, normalised where a weight is given, and rotated; a new tensor. Rounded to their dtype
    after each, as the kernel does."""
    if norm_D is not None:
        x_RWD = rms_norm_rstd(x_RWD.flatten(0, 1), norm_D, eps)[0].view(x_RWD.shape)
    (own, other), x = places.turns, x_RWD.float()
    turned = (x * own).addcmul_(x.roll(x.shape[-1] // 2, -1), other)
    return turned.to(x_RWD.dtype)


def _write(k_RKD: Tensor, v_RKD: Tensor, keys: Tensor, values: Tensor, places: Places) -> None:
    if places.alone and len(places.slices) <= FEW:
        for rows, blocks, at in places.slices:
            keys[blocks, :, :, at] = k_RKD[rows]
            values[blocks, :, at] = v_RKD[rows]
        return
    blocks_R, at_R = places.written
    keys[blocks_R, :, :, at_R] = k_RKD.to(keys.dtype)
    values[blocks_R, :, at_R] = v_RKD.to(values.dtype)


def _attend_alone(q_RQD: Tensor, keys: Tensor, values: Tensor, places: Places) -> Tensor:
    """One row a sequence, all of them at once, a column of blocks after the other."""
    (rows, queries, head_dim), kv_heads = q_RQD.shape, keys.shape[1]
    q_RKHD = q_RQD.view(rows, kv_heads, -1, head_dim)
    scores = torch.cat([column.times(q_RKHD, keys) for column in places.columns], -1)
    weights = scores.masked_fill_(places.hidden, -torch.inf).softmax(-1)
    mixed = [
        column.times(part, values)
        for column, part in zip(places.columns, torch.split(weights, BLOCK, -1), strict=True)
    ]
    out = mixed[0]
    for more in mixed[1:]:
        out += more
    return out.reshape(rows, queries, head_dim)


def _attend_together(
    q_RQD: Tensor, keys: Tensor, values: Tensor, table: Tensor, positions_R: Tensor
) -> Tensor:
    """Rows of one sequence."""
    kv_heads, head_dim = keys.shape[1:3]
    length = int(positions_R.max()) + 1
    used = table[: -(-length // BLOCK)]
    k = keys[used].permute(1, 0, 3, 2).reshape(1, kv_heads, -1, head_dim)[:, :, :length]
    v = values[used].transpose(0, 1).reshape(1, kv_heads, -1, head_dim)[:, :, :length]
    seen = torch.arange(length, device=q_RQD.device)[None] <= positions_R[:, None]
    q, k, v = q_RQD.transpose(0, 1)[None], k.to(q_RQD.dtype), v.to(q_RQD.dtype)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True)
    return o[0].transpose(0, 1)


def _column(blocks: Sequence[int], device: torch.device) -> Column:
    """The column of these blocks, one a row."""
    sharing = next((i for i, b in enumerate(blocks) if b != blocks[0]), len(blocks))
    each = list(blocks[::sharing])
    if [b for b in each for _ in range(sharing)] != list(blocks):
        sharing, each = 1, list(blocks)
    if each == list(range(each[0], each[0] + len(each))):
        return Column(blocks=slice(each[0], each[0] + len(each)), sharing=sharing)
    return Column(blocks=torch.tensor(each, device=device), sharing=sharing)
