"""Decoding of any Hugging Face causal model: one left-padded batch with the library's cache.

Correct for every family and slower: whenever a sequence joins, the whole batch is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hexpo.adapters.models.decode.cache import Lane
from hexpo.adapters.models.decode.decoder import Feed, WeightsMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GenericDecoder:
    """Reads the live module. A lane's state is the list of its ids."""

    def __init__(self, module: PreTrainedModel, *, vocabulary: int) -> None:
        self._module, self._vocabulary = module, vocabulary
        self.refresh()

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    @property
    def mode(self) -> WeightsMode:
        return WeightsMode.LIVE

    def open(self) -> Lane:
        return Lane(state=[])

    def fork(self, lane: Lane, length: int) -> Lane:
        return Lane(length=length, state=_ids(lane)[:length])

    def close(self, lane: Lane) -> None:
        lane.is_open = False

    def refresh(self) -> None:
        self._lanes: list[Lane] = []
        self._cache: Any = None
        self._mask = torch.empty(0)

    def prefill(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            _ids(feed.lane).extend(feed.ids)
            feed.lane.length += len(feed.ids)

    @torch.no_grad()
    def feed(self, feeds: Sequence[Feed]) -> Tensor:
        self.prefill(feeds)
        lanes = [feed.lane for feed in feeds]
        training = self._module.training
        self._module.train(mode=False)
        try:
            if all(len(feed.ids) == 1 for feed in feeds) and self._select(lanes):
                return self._append()
            return self._begin(lanes)
        finally:
            self._module.train(training)

    def _select(self, lanes: list[Lane]) -> bool:
        """Narrow the running batch to `lanes`; False if they are not all in it, in its order."""
        places = {id(lane): i for i, lane in enumerate(self._lanes)}
        keep = [places.get(id(lane), -1) for lane in lanes]
        if not keep or keep != sorted(keep) or keep[0] < 0:
            return False
        if any(lane.length != self._lengths[id(lane)] + 1 for lane in lanes):
            return False
        if len(keep) < len(self._lanes):
            if not all(hasattr(layer, "batch_select_indices") for layer in self._cache.layers):
                return False
            indices = torch.tensor(keep, device=self._module.device)
            self._cache.batch_select_indices(indices)
            self._mask = self._mask[indices]
            self._lanes = list(lanes)
        return True

    def _begin(self, lanes: list[Lane]) -> Tensor:
        longest = max(lane.length for lane in lanes)
        ids = torch.zeros(len(lanes), longest, dtype=torch.int64)
        self._mask = torch.zeros(len(lanes), longest, dtype=torch.int64)
        for i, lane in enumerate(lanes):
            ids[i, longest - lane.length :] = torch.tensor(_ids(lane))
            self._mask[i, longest - lane.length :] = 1
        self._mask = self._mask.to(self._module.device)
        self._lanes, self._cache = list(lanes), None
        return self._run(ids)

    def _append(self) -> Tensor:
        ids = torch.tensor([[_ids(lane)[-1]] for lane in self._lanes])
        self._mask = torch.cat((self._mask, self._mask.new_ones(len(ids), 1)), 1)
        return self._run(ids)

    def _run(self, ids: Tensor) -> Tensor:
        positions = (self._mask.cumsum(1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        output = self._module(
            input_ids=ids.to(self._module.device),
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        self._lengths = {id(lane): lane.length for lane in self._lanes}
        last: Tensor = output.logits[:, -1]
        return last


def _ids(lane: Lane) -> list[int]:
    state = lane.state
    if not isinstance(state, list):
        raise TypeError("a lane of another decoder")
    return state
