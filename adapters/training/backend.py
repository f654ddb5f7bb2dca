"""A training backend: one rank's own work, in plain blocking calls.

Whoever runs ranks (`host`) fetches rows, splits them and merges results; a backend computes. All
ranks make the same calls in the same order, so that their collectives meet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.layout import Rows
from hexpo.application.ports.transfer import Weight
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.domain.metrics import Measure, Metrics
from hexpo.domain.objective import Objective


@attrs.frozen(eq=False)
class Part:
    """Rows of one micro-batch and their token columns, (T, ...) each."""

    sequences: Sequences
    columns: Mapping[str, Tensor]

    def rows(self, selected_T: Tensor) -> Rows:
        """What the model is asked. Raises WrongBatch: a row's first token is selected."""
        lengths = self.sequences.lengths
        first_T = torch.zeros_like(selected_T)
        first_T[(lengths.cumsum(0) - lengths)[lengths > 0]] = True
        if bool((first_T & selected_T).any()):
            raise WrongBatch(
                "the first token of a row is marked as trained, but nothing predicts it; mark"
                " tokens after the prompt only"
            )
        zeros = torch.zeros_like(lengths)
        return Rows(
            tokens_T=self.columns["token"],
            positions_T=self.columns["position"],
            lengths_S=lengths,
            prompt_lengths_S=self._column("prompt_length", zeros),
            groups_S=self._column("group", self.sequences.ids),
            selected_T=selected_T,
        )

    def _column(self, name: str, otherwise: Tensor) -> Tensor:
        return self.sequences[name] if name in self.sequences else otherwise


@attrs.frozen
class Added:
    """What one micro-batch gave."""

    metrics: Mapping[str, Measure]
    tokens: int
    """Tokens whose loss was taken."""
    spoilt: tuple[int, ...] = ()
    """Ids of rows whose loss or gradient is not finite: the step has to be skipped."""


@attrs.frozen
class Gradient:
    """What was accumulated, as a whole."""

    norm: float
    """Before clipping, over all ranks."""
    bad: str = ""
    """The first weight with a non-finite gradient."""


@attrs.frozen(kw_only=True)
class Progress:
    """What an engine counts; the schedule and the dropout's noise follow from it."""

    version: int = 0
    """Publications."""
    applied: int = 0
    """Optimizer steps that changed the weights."""
    skipped: int = 0
    """Steps without a change, in all."""
    skipped_in_row: int = 0
    """Non-finite steps since the last applied one."""


@attrs.frozen(kw_only=True)
class Abilities:
    """What a backend says of itself. Plain: it crosses processes."""

    packs: bool
    """Rows of one micro-batch share a forward without padding."""
    scores: frozenset[str]
    """Columns that `score` makes."""
    has_reference: bool
    """The model before training can be asked."""
    micro_tokens: int
    """Tokens that are run at once."""
    max_skipped_steps: int
    """The run stops after so many non-finite steps in a row."""
    device: str = "cpu"
    """Kind of the device that it computes on."""
    saves_aside: bool = False
    """`snapshot` is cheap enough to be preferred to `save`."""
    team: int = 1
    """So many consecutive ranks compute the same rows together; the first speaks for them."""


class Backend(Protocol):
    """One rank. Every call blocks; where a call says *together*, all ranks make it.

    Raises: whatever the technology raises; the host turns it into EngineFailed.
    """

    @property
    def abilities(self) -> Abilities: ...

    def accumulate(
        self, part: Part | None, objective: Objective, *, draw: tuple[int, int], last: bool
    ) -> Added:
        """Together: add a micro-batch's gradient; None is a weightless one that costs the same
        collectives.

        Args: draw: applied steps and number of the micro-batch in its step: names the noise.
            last: no other one follows in this call.
        """
        ...

    def score(
        self, part: Part | None, columns: Collection[str], *, reference: bool
    ) -> dict[str, Tensor]:
        """Together: (T,) columns of sampled tokens; 0 elsewhere."""
        ...

    def gradient(self) -> Gradient:
        """Together: what was accumulated."""
        ...

    def apply(self, gradient: Gradient, *, applied: int) -> Metrics:
        """Clip and step, as the step after `applied` ones; gives the learning rate."""
        ...

    def forget(self) -> None:
        """Gradients back to zero, whatever they hold."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Together: the present weights as engines load them, a bucket of layers at a time. Only
        what rank 0 yields is whole; every rank has to go to the end."""
        ...

    def save(self, folder: Path) -> dict[str, int]:
        """This rank's part of weights and optimizer state; gives its files and their bytes."""
        ...

    def snapshot(self) -> Callable[[Path], dict[str, int]]:
        """What does the same as `save` with this rank's part as it is now, from copies of its own:
        it may be called in any thread while training goes on."""
        ...

    def load(self, folder: Path, progress: Progress) -> None:
        """Together: this rank's part of what any number of ranks saved."""
        ...

    def export(self, folder: Path) -> None:
        """Together: a Hugging Face folder, written by rank 0."""
        ...

    def base_digest(self) -> str:
        """Together: a hash of what is not trained."""
        ...

    def offload(self) -> None:
        """The device's memory back; `onload` restores it bit for bit."""
        ...

    def onload(self) -> None:
        """Undo `offload`."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
