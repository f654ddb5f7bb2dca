"""A critic: the same decoder with one number a token in the place of a distribution."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hexpo.adapters.models.head import gradients_of
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.training.backend import Added, Part
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.rank import Rank, spoilt_rows
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import total
from hexpo.domain.objective import Objective

if TYPE_CHECKING:
    from hexpo.adapters.training.fsdp.sharding import Sharding

HEAD = "value_head"
"""Where the head's weight lies in the module, so that it is trained and saved with the others."""


def attach_value_head(policy: Policy) -> torch.nn.Linear:
    """A head that starts at 0, in single precision: every state is worth the same at first."""
    hidden = policy.module.get_input_embeddings().weight.shape[1]  # type: ignore[index]
    head = torch.nn.Linear(int(hidden), 1, bias=False, dtype=torch.float32, device=policy.device)
    torch.nn.init.zeros_(head.weight)
    policy.module.add_module(HEAD, head)
    return head


class CriticRank(Rank):
    """One rank's work for a critic; the value at i is what the state before token i is worth."""

    scores = frozenset({"value"})

    def __init__(
        self, policy: Policy, config: Config, *, seed: int, sharding: Sharding | None = None
    ) -> None:
        if config.lora is not None:
            raise Unsupported("a critic trains all weights: remove `lora` from its options")
        self._head = attach_value_head(policy)
        super().__init__(policy, config, temperature=1.0, seed=seed, sharding=sharding)

    def score(
        self, part: Part, columns: Collection[str], *, reference: bool = False
    ) -> dict[str, Tensor]:
        """(T,) fp32 `value` of sampled tokens; 0 elsewhere."""
        selected_T = part.columns["action"]
        value_T = torch.zeros(len(selected_T))
        if bool(selected_T.any()):
            with torch.no_grad():
                value_T[selected_T] = self._values(part, selected_T)
        return dict.fromkeys(columns, value_T)

    def accumulate(self, part: Part, objective: Objective, *, draw: tuple[int, int]) -> Added:
        """Add the gradient of a part, or nothing where it is not finite."""
        selected_T = torch.stack([part.columns[term.mask] for term in objective.terms]).any(0)
        if not bool(selected_T.any()):
            return Added({}, 0)
        with self._noise(draw):
            value_M = self._values(part, selected_T)
        owner_T = torch.repeat_interleave(part.sequences.lengths)
        columns = {name: column[selected_T] for name, column in part.columns.items()}
        leaf_M = value_M.detach().requires_grad_()
        columns |= {"owner": owner_T[selected_T], "prediction": leaf_M}
        loss, metrics = objective.evaluate(columns, part.sequences)
        pulls = gradients_of(loss, [leaf_M])
        spoilt = spoilt_rows(loss, pulls, columns["owner"], part.sequences.ids)
        if not spoilt or self._model.sharded is not None:  # the other ranks wait for this one
            value_M.backward(pulls[0])  # type: ignore[no-untyped-call]
        count = value_M.numel()
        return Added({**metrics, "train/tokens": total(count)}, count, spoilt)

    def _values(self, part: Part, selected_T: Tensor) -> Tensor:
        def run() -> Tensor:
            hidden_MH = self._model.forward.hidden(part.rows(selected_T))
            return self._model.per_token(
                hidden_MH.float(), lambda x_MH: self._head(x_MH).squeeze(1)
            )

        return self._model.within(run)
