"""A rank whose policy has multi-token heads beside it: their terms, their gradient, their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.families import Forward, Packing, packs
from hexpo.adapters.models.generic import PackedForward
from hexpo.adapters.models.head import gradients_of
from hexpo.adapters.models.layout import Ran, Rows
from hexpo.adapters.models.llama import LlamaForward
from hexpo.adapters.models.mtp import DeepForward, MultiToken
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.evaluation import Settled, require_whole_head
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.adapters.training.fsdp.rank import Rank, trained_of
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Measure, mean_of
from hexpo.domain.objective import Objective

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FOLDER = "mtp"
"""Where an exported model has its heads, and what their names in a save begin with."""


class ForesightRank(Rank):
    """One rank's work for a policy with heads that predict further tokens.

    Their weights are learnt, clipped and saved beside the policy's, and are no part of it: nobody
    who reads the policy's module meets them.
    """

    def __init__(self, policy: Policy, config: Config, *, temperature: float, seed: int) -> None:
        """Raises ModelError, Unsupported: the family cannot have such heads."""
        if config.value_head:
            raise Unsupported("a critic predicts no tokens: remove `mtp_depths` from its options")
        require_packed(config.packing, policy.config)
        self._heads = MultiToken(policy, config.mtp_depths)  # before adapters change the layers
        super().__init__(policy, config, temperature=temperature, seed=seed)
        self._deep = _deep(self._model.forward)

    def _masters(self) -> Masters:
        heads = {f"{FOLDER}.{name}": one for name, one in self._heads.named_parameters().items()}
        return Masters({**trained_of(self._policy), **heads}, self._config, apart=frozenset(heads))

    def export(self, folder: Path) -> None:
        """The policy, and its heads in a folder of their own."""
        super().export(folder)
        self._heads.write(folder / FOLDER)

    def _settle(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        rows: Rows,
    ) -> tuple[Settled, dict[str, Measure]]:
        own = objective.foresees
        others = [place for place in range(len(objective.terms)) if place not in own]
        if not own:
            return super()._settle(objective, sequences, columns, rows)
        if not others:
            raise Unsupported("an objective of multi-token terms alone: add one of the policy's")
        ran = self._deep.ran(rows, detached=self._config.mtp_detached)
        settled, metrics = self._plan(
            *objective.take(others, sequences), columns, rows, lambda: ran.hidden_MH
        )
        seen, measured = self._foresee(*objective.take(own, sequences), columns, rows, ran)
        return _both(settled, seen), {**metrics, **measured}

    def _foresee(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        rows: Rows,
        ran: Ran,
    ) -> tuple[Settled, dict[str, Measure]]:
        """The terms that read `mtp`, on the mean of all depths; a depth that a token is too early
        for adds 0 to it."""
        if others := sorted(objective.statistics - {"mtp"}):
            raise Unsupported(
                f"a term that reads `mtp` may not read {', '.join(others)} of the policy: make two"
            )
        asked_M = torch.stack([columns[term.mask] for term in objective.terms]).any(0)
        asked_T = rows.selected_T.masked_scatter(rows.selected_T, asked_M)
        asked_m = asked_M.nonzero()[:, 0]
        guesses = self._heads.guess(
            self._deep,
            require_whole_head(self._model.head),
            attrs.evolve(rows, selected_T=asked_T),
            ran,
            detached=self._config.mtp_detached,
        )
        mean_M = torch.zeros(len(asked_M))
        metrics: dict[str, Measure] = {}
        for number, guess in enumerate(guesses, start=1):
            logprobs_R, count = guess.logprobs_R, guess.logprobs_R.numel()
            mean_M = mean_M.index_add(
                0, asked_m[guess.reached_M], logprobs_R / self._config.mtp_depths
            )
            metrics[f"mtp/loss/{number}"] = mean_of(-float(logprobs_R.detach().sum()), count)
            metrics[f"mtp/accepted/{number}"] = mean_of(float(guess.right_R.sum()), count)
        leaf_M = mean_M.detach().requires_grad_()
        loss, of_terms = objective.evaluate({**columns, "mtp": leaf_M}, sequences)
        pulls_1M = gradients_of(loss, [leaf_M])
        roots = (mean_M,) if mean_M.requires_grad else ()
        settled = Settled(roots, tuple(pulls_1M)[: len(roots)], loss.detach(), pulls_1M)
        return settled, {**metrics, **of_terms}


def _both(one: Settled, other: Settled) -> Settled:
    return Settled(
        (*one.roots, *other.roots),
        (*one.starts, *other.starts),
        one.loss + other.loss,
        torch.cat((one.pulls, other.pulls)),
    )


def require_packed(packing: Packing, config: PretrainedConfig) -> None:
    """Raises Unsupported: rows of this model do not run packed, as its heads would have to."""
    if packing is Packing.PADDED or not packs(config):
        raise Unsupported(
            f"mtp_depths: {config.model_type} runs padded in this setting, and multi-token heads"
            " run packed; use packing = auto and a family that is tested for it, or mtp_depths = 0"
        )


def _deep(forward: Forward) -> DeepForward:
    if isinstance(forward, LlamaForward | PackedForward):
        return forward
    raise Unsupported(f"mtp_depths: {type(forward).__name__} cannot be given further layers")
