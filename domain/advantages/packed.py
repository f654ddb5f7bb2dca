"""Recursions over the action tokens of packed rows, without a loop over tokens or rows.

The action tokens of each row are gathered into blocks of a fixed width; the last block of a row
may have empty slots, which hold 0. Inside a block a discounted sum is a product with a triangular
matrix; from block to block it is a scan in a logarithmic number of steps. What stands at other
tokens is never used, so it cannot matter what it is.
They all share one spare slot, in a block of its own at the end, which is emptied after each use.

Time goes into passes over all tokens. Where every token is an action and every row fills its
blocks, a column is its own blocks, and nothing is gathered.

Axes: B blocks, W slots of a block.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor
from torch.nn.functional import pad

from hexpo.domain.errors import WrongColumn

WIDTH = 64
"""Slots of a block: wide enough to make few blocks, narrow enough for a cheap product."""
FEW = 2**31 // WIDTH
"""Tokens whose slots fit in int32, even if each has a block of its own."""


@attrs.frozen(eq=False)
class Actions:
    """The action tokens of packed rows, in blocks."""

    tokens: int
    """Of all rows."""
    slot_T: Tensor | None
    """Slot of each action token, blocks end to end; the spare one for other tokens. int32 for
    fewer than `FEW` tokens: half of the memory, and a much faster running count. None: each token
    has its own place."""
    row_B: Tensor
    """int64 place of each block's row; the spare block counts as the last row's."""
    count_S: Tensor
    """int64 action tokens of each row."""

    @staticmethod
    def of(*, action_T: Tensor, owner_T: Tensor, scored_S: Tensor) -> Actions:
        """Find the action tokens of the scored rows.

        Args: action_T: (T,) bool. owner_T: (T,) int64, never falling: rows lie end to end.
            scored_S: (S,) bool; a row without a score has no action here (B7).
        Raises: WrongColumn: axes or dtype disagree.
        """
        if action_T.shape != owner_T.shape or action_T.dtype is not torch.bool:
            raise WrongColumn(
                f"action is {action_T.dtype} {tuple(action_T.shape)}, and owner has the axes"
                f" {tuple(owner_T.shape)}; action must be bool and both (T,)"
            )
        (tokens,), rows, device = action_T.shape, scored_S.shape[0], action_T.device
        if not bool(scored_S.all()):
            action_T = action_T & scored_S[owner_T]
        every = bool(action_T.all())
        whole = torch.int32 if tokens < FEW else torch.int64
        offsets = torch.searchsorted(owner_T, torch.arange(rows + 1, device=device))
        if every:
            seen_T = torch.arange(1, tokens + 1, dtype=whole, device=device)
            before = offsets
        else:
            seen_T = action_T.cumsum(0, dtype=whole)
            before = _seen_before(seen_T, offsets).long()
        count_S = before.diff()
        blocks_S = (count_S + WIDTH - 1) // WIDTH
        row_B = torch.repeat_interleave(blocks_S)
        spare_B = row_B.new_full((min(rows, 1),), rows - 1)
        row_B = torch.cat([row_B, spare_B])
        if every and not bool((count_S % WIDTH).any()):
            return Actions(tokens, None, row_B, count_S)
        # The n-th action token of a row lies in the n-th slot of the row's blocks.
        shift_S = (blocks_S.cumsum(0) - blocks_S) * WIDTH - before[:-1] - 1
        slot_T = seen_T.add_(shift_S.to(whole).index_select(0, owner_T))
        if not every:
            slot_T.masked_fill_(~action_T, (row_B.shape[0] - 1) * WIDTH)
        return Actions(tokens, slot_T, row_B, count_S)

    @property
    def filled_BW(self) -> Tensor:
        """(B, W) bool: slots that hold a token."""
        return self.take(self.row_B.new_ones(self.tokens, dtype=torch.bool))

    def take(self, column_T: Tensor) -> Tensor:
        """(B, W) a token column at the action tokens; 0 in empty slots.

        Raises: WrongColumn: the column is not (T,).
        """
        if column_T.shape != (self.tokens,):
            raise WrongColumn(
                f"a column has the axes {tuple(column_T.shape)}; action has ({self.tokens},)"
            )
        if self.slot_T is None:
            spare = WIDTH * min(len(self.row_B), 1)
            return pad(column_T, (0, spare)).view(-1, WIDTH)
        slots = column_T.new_zeros(self.row_B.shape[0] * WIDTH)
        slots.index_add_(0, self.slot_T, column_T)
        return self._emptied(slots.view(-1, WIDTH))

    def put(self, values_BW: Tensor) -> Tensor:
        """(T,) float32: values at their tokens, exactly 0 at every other one; a tensor of its own.

        Args: values_BW: contiguous; its spare slot is emptied.
        """
        if self.slot_T is None:
            return values_BW.flatten()[: self.tokens].to(torch.float32, copy=True)
        return self._emptied(values_BW.float()).flatten().index_select(0, self.slot_T)

    def add_following_(self, sums_BW: Tensor, values_BW: Tensor, *, scale: float) -> Tensor:
        """`sums_BW` plus `scale` times the value at the next action token of the row; nothing at
        its last one. In place; both contiguous."""
        if sums_BW.numel() == 0:
            return sums_BW
        last_B = sums_BW[:, -1].clone()
        sums_BW.flatten()[:-1].add_(values_BW.flatten()[1:], alpha=scale)
        sums_BW[:, -1] = torch.where(self._same_row(1), sums_BW[:, -1], last_B)
        return sums_BW

    def suffix_sums(self, values_BW: Tensor, *, decay: float | Tensor) -> Tensor:
        """(B, W) y_t = x_t + decay y_t', t' the next action token of the row.

        Args: values_BW: floating. decay: one number, or (S,) in the dtype of the values.
        """
        if isinstance(decay, Tensor):
            return self._suffix_sums_of_rows(values_BW, decay)
        exponents = torch.arange(WIDTH, device=values_BW.device)
        powers = decay ** exponents.to(values_BW.dtype)
        reach = exponents[:, None] - exponents[None, :]
        triangle = torch.where(reach >= 0, powers[reach.clamp(min=0)], 0.0)
        local_BW = values_BW @ triangle
        carry_B = self._carry(local_BW[:, 0], powers.new_full(self.row_B.shape, decay**WIDTH))
        return local_BW.addcmul_(carry_B[:, None], (powers * decay).flip(0))

    def _suffix_sums_of_rows(self, values_BW: Tensor, decay_S: Tensor) -> Tensor:
        decay_B = decay_S[self.row_B]
        local_BW, reach = values_BW, 1
        while reach < WIDTH:
            later_BW = pad(local_BW[:, reach:], (0, reach))
            local_BW = torch.addcmul(local_BW, later_BW, (decay_B**reach)[:, None])
            reach *= 2
        carry_B = self._carry(local_BW[:, 0], decay_B**WIDTH)
        left = WIDTH - torch.arange(WIDTH, device=values_BW.device, dtype=values_BW.dtype)
        return local_BW + carry_B[:, None] * decay_B[:, None] ** left

    def _carry(self, head_B: Tensor, factor_B: Tensor) -> Tensor:
        """(B,) the sum from the next block of the row on, as its first token sees it."""
        total_B, reach = head_B, 1
        widest = -(-int(self.count_S.max()) // WIDTH) if self.count_S.numel() else 0
        while reach < widest:
            later_B = torch.where(self._same_row(reach), _ahead(total_B, reach), 0.0)
            total_B = torch.addcmul(total_B, later_B, factor_B**reach)
            reach *= 2
        return torch.where(self._same_row(1), _ahead(total_B, 1), 0.0)

    def _emptied(self, values_BW: Tensor) -> Tensor:
        values_BW[-1:, :1].zero_()
        return values_BW

    def _same_row(self, reach: int) -> Tensor:
        """(B,) bool: the block `reach` places on belongs to the same row."""
        ahead = pad(self.row_B[reach:], (0, min(reach, len(self.row_B))), value=-1)
        return ahead == self.row_B


def _seen_before(seen_T: Tensor, offsets: Tensor) -> Tensor:
    """Action tokens before each offset, from their running count."""
    if seen_T.shape[0] == 0:
        return torch.zeros_like(offsets)
    return seen_T[(offsets - 1).clamp(min=0)] * (offsets > 0)


def _ahead(values_B: Tensor, reach: int) -> Tensor:
    return pad(values_B[reach:], (0, min(reach, values_B.shape[0])))
