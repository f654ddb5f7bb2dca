"""From given answers to the two tables: what `fit` trains on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from hexpo.domain.batch.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch


@attrs.frozen(kw_only=True, eq=False)
class Example:
    """One conversation that is given, and which of its tokens are to be learnt."""

    tokens: Tensor
    """(L,) int64 ids."""
    action: Tensor
    """(L,) bool: tokens of answers, their end tokens included; never the first one."""
    chosen: bool = True
    """The better one of its pair, or judged good."""

    def __attrs_post_init__(self) -> None:
        if self.tokens.dim() != 1 or self.tokens.shape != self.action.shape:
            raise WrongBatch(
                f"tokens {tuple(self.tokens.shape)} and action {tuple(self.action.shape)} must"
                " both be (L,)"
            )
        if bool(self.action[:1].any()):
            raise WrongBatch("the first token is an answer's, but nothing predicts it")

    @property
    def prompt_length(self) -> int:
        """Tokens before the first answer; all of them where there is no answer."""
        places = self.action.nonzero()
        return int(places[0]) if len(places) else len(self.tokens)

    @property
    def prompt(self) -> Tensor:
        """(P,) tokens before the first answer."""
        return self.tokens[: self.prompt_length]

    @property
    def answer(self) -> Tensor:
        """(L - P,) the other tokens."""
        return self.tokens[self.prompt_length :]


Unit = Sequence[Example]
"""The examples of one row of the data: one, or the two of a pair. They share a group."""


def lay_out(units: Sequence[Unit], *, first_id: int = 0) -> Batch:
    """The two tables of some units, in the order given; ids and groups count from `first_id`.

    Raises: WrongBatch: see `Example`.
    """
    examples = [example for unit in units for example in unit]
    group = [first_id + place for place, unit in enumerate(units) for _ in unit]
    length_S = _integers([len(example.tokens) for example in examples])
    actions_S = _integers([int(example.action.sum()) for example in examples])
    position_T = torch.arange(int(length_S.sum()))
    position_T -= torch.repeat_interleave(length_S.cumsum(0) - length_S, length_S)
    action_T = _end_to_end([example.action for example in examples], torch.bool)
    table = {
        "id": _integers([first_id + place for place in range(len(examples))]),
        "group": _integers(group),
        "length": length_S,
        "prompt_length": _integers([example.prompt_length for example in examples]),
        "actions": actions_S,
        "trained": actions_S,
        "chosen": torch.tensor([example.chosen for example in examples], dtype=torch.bool),
    }
    tokens = {
        "token": _end_to_end([example.tokens for example in examples], torch.int64),
        "position": position_T,
        "action": action_T,
        "trained": action_T,
    }
    return Batch.of(Sequences.of(table), tokens)


def mismatched(examples: Sequence[Example]) -> list[Example]:
    """Each prompt with the next one's answer (the last with the first one's), for KTO's reference
    point; none where there is no other prompt."""
    if len(examples) < 2:
        return []
    return [
        Example(
            tokens=torch.cat([here.prompt, there.answer]),
            action=torch.cat(
                [torch.zeros_like(here.prompt).bool(), there.action[there.prompt_length :]]
            ),
        )
        for here, there in zip(examples, [*examples[1:], examples[0]], strict=True)
    ]


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _end_to_end(columns: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([column.to(dtype) for column in columns] or [torch.zeros(0, dtype=dtype)])
