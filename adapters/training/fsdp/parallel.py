"""The fast forward by a team of ranks: weights cut among them, or tokens, or both.

Tokens cut (Ulysses: Jacobs et al. 2023, 2309.14509): each rank runs consecutive tokens of the
packed rows; around attention an exchange gives it all tokens of some heads.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.attention import Segment
from hexpo.adapters.models.kernels import Kernels, functions
from hexpo.adapters.models.layout import Rows, lay_out
from hexpo.adapters.models.llama import LlamaForward
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.fsdp.team import Team


def local(weight: Tensor) -> Tensor:
    """This rank's piece of a weight that is cut, differentiably; a whole one as it is."""
    from torch.distributed.tensor import DTensor

    return weight.to_local() if isinstance(weight, DTensor) else weight


class TeamForward(LlamaForward):
    """Hidden states of selected tokens: every rank of the team gets all of them."""

    def __init__(
        self,
        policy: Policy,
        kernels: Kernels,
        *,
        tensor: Team | None,
        sequence: Team | None,
        checkpointing: bool = False,
    ) -> None:
        """Args: tensor, sequence: the ranks that share weights, and tokens."""
        super().__init__(policy, kernels, checkpointing=checkpointing)
        self._tensor, self._sequence = tensor, sequence
        self._of_heads: set[Any] = set()
        self._vocabulary = self._spec.vocabulary
        if tensor is not None:
            self._spec = attrs.evolve(
                self._spec,
                heads=self._spec.heads // tensor.size,
                kv_heads=self._spec.kv_heads // tensor.size,
            )
            if self._spec.qk_norm:
                attentions = [layer.self_attn for layer in self._model.layers]
                self._of_heads = {norm for one in attentions for norm in (one.q_norm, one.k_norm)}

    def hidden(self, rows: Rows) -> Tensor:
        """(M, H): for each selected token the normalised hidden state that predicts it."""
        if self._sequence is None:
            return super().hidden(rows)
        layout, team = lay_out(rows, share=self._share), self._sequence
        tokens = len(layout.tokens_N)
        own = -(-tokens // team.size)
        missing = own * team.size - tokens
        cut = slice(team.rank * own, (team.rank + 1) * own)
        tokens_n = torch.cat((layout.tokens_N, layout.tokens_N.new_zeros(missing)))[cut]
        positions_n = torch.cat((layout.positions_N, layout.positions_N.new_zeros(missing)))[cut]
        x_nH = self._run(self._embed(tokens_n), positions_n, layout.segments)
        is_own_M = layout.source_M // max(1, own) == team.rank
        own_mH = self._norm(x_nH[layout.source_M[is_own_M] - cut.start], self._model.norm)
        places_m = is_own_M.nonzero()[:, 0]
        all_MH = own_mH.new_zeros(len(is_own_M), own_mH.shape[1]).index_copy(0, places_m, own_mH)
        return team.enter(team.leave(all_MH))  # each rank goes on with other tokens: a sum back

    def _embed(self, tokens_N: Tensor) -> Tensor:
        team = self._tensor
        if team is None:
            return super()._embed(tokens_N)
        embedding = self._model.embed_tokens
        span = team.span(self._vocabulary)
        is_own_N = (tokens_N >= span.start) & (tokens_N < span.stop)
        padding = embedding.padding_idx
        if padding is not None:
            padding = padding - span.start if span.start <= padding < span.stop else None
        own_N = torch.where(is_own_N, tokens_N - span.start, 0)
        x_NH = functions.embedding(local(embedding.weight), own_N, padding)
        return team.leave(x_NH * is_own_N[:, None].to(x_NH.dtype))

    def _attend(self, qkv_NW: Tensor, segments: tuple[Segment, ...], *, share: int = 1) -> Tensor:
        team = self._sequence
        if team is None:
            return super()._attend(qkv_NW, segments, share=share)
        spec, ranks, own = self._spec, team.size, len(qkv_NW)
        sizes = [heads * spec.head_dim for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
        parts = [part.view(own, ranks, -1) for part in torch.split(qkv_NW, sizes, 1)]
        sent = torch.cat(parts, 2).transpose(0, 1)
        some_heads = team.exchange(sent).flatten(0, 1)
        tokens = sum(segment.size for segment in segments)
        mixed = super()._attend(some_heads[:tokens], segments, share=ranks)
        padded = torch.cat((mixed, mixed.new_zeros(own * ranks - tokens, mixed.shape[1])))
        back = team.exchange(padded.view(ranks, own, -1))
        return back.transpose(0, 1).reshape(own, -1)

    def _norm(self, x: Tensor, norm: Any) -> Tensor:
        weight = norm.weight
        if self._tensor is not None and norm in self._of_heads:
            weight = self._tensor.enter(weight)  # each rank sees some heads: gradients add up
        return functions.rms_norm(self._kernels, x, weight, self._spec.eps)

    def _project(self, x: Tensor, *linears: Any) -> Tensor:
        team = self._tensor
        if team is None:
            return super()._project(x, *linears)
        weights = [local(linear.weight) for linear in linears]
        biases = [local(linear.bias) for linear in linears if linear.bias is not None]
        bias = torch.cat(biases) if biases else None
        if len(linears) > 1:  # cut by output
            return functions.linear(self._kernels, team.enter(x), weights, bias)
        out = team.leave(functions.linear(self._kernels, x, weights))
        return out if bias is None else out + bias
