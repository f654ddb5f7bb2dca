"""One rank's own work, without a process group and without waiting: forward, backward, step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.distributions import top
from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.families import (
    Forward,
    Packing,
    forward_of,
    kernels_for,
    require_plain_head,
    runs_packed,
)
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.layout import Rows
from hexpo.adapters.models.lora import attach, dropping_out, without_adapters
from hexpo.adapters.models.policy import Policy, digest_of
from hexpo.adapters.training.backend import Added, Part
from hexpo.adapters.training.fsdp.config import Config, Sent
from hexpo.adapters.training.fsdp.evaluation import Other, Plan, Settled, require_whole_head
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.adapters.training.wire import blank
from hexpo.application.disk import on_disk
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Measure
from hexpo.domain.objective import Objective
from hexpo.domain.seeds import seed_for

if TYPE_CHECKING:
    from hexpo.adapters.training.fsdp.heads import SharedHead
    from hexpo.adapters.training.fsdp.sharding import Sharded, Sharding

_T = TypeVar("_T")


class Model:
    """A policy with the way it runs and its head; in parts on all ranks where it is sharded."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        *,
        temperature: float,
        sharding: Sharding | None = None,
    ) -> None:
        kernels = kernels_for(policy, native=config.native_kernels)
        self.forward: Forward = forward_of(
            policy,
            kernels,
            packing=config.packing,
            checkpointing=config.activation_checkpointing,
        )
        self._policy = policy
        weight_VH = _head_of(policy)
        self.width = min(config.top_k, weight_VH.shape[0])
        self._head = Head(
            weight_VH=weight_VH,
            kernels=kernels,
            temperature=temperature,
            chunk=config.head_tokens,
        )
        self.sharded: Sharded | None = None
        if sharding is not None:
            self.forward, self.sharded = sharding.shard(policy, self.forward, kernels, config)

    @property
    def head(self) -> Head | SharedHead:
        """The output layer; of a sharded model only inside `within`."""
        return self._head if self.sharded is None else self.sharded.head(self._head)

    def per_token(self, hidden_MH: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """(M,) what `work` gives for each token; a team of ranks shares the tokens."""
        return work(hidden_MH) if self.sharded is None else self.sharded.per_token(hidden_MH, work)

    def within(self, work: Callable[[], _T]) -> _T:
        """Run what needs the weights; of a sharded model all ranks do so together."""
        return work() if self.sharded is None else self.sharded.within(work)

    def score(self, part: Part, columns: Collection[str]) -> dict[str, Tensor]:
        """(T,) fp32 log-probs, entropies and sums of squared probabilities, as asked; `topk` and
        `ids` (T, K), the likeliest ids and their log-probs."""
        return self.within(lambda: self._score(part, columns))

    def lend(self, rows: Rows) -> Other:
        """Hidden states of selected tokens, without gradient, and a head that stays whole."""

        def run() -> tuple[Tensor, Head]:
            head = require_whole_head(self.head)
            if self.sharded is not None:
                head = attrs.evolve(head, weight_VH=head.weight_VH.detach().clone())
            return self.forward.hidden(rows), head

        with torch.no_grad():
            return Other(*self.within(run))

    def _score(self, part: Part, columns: Collection[str]) -> dict[str, Tensor]:
        selected_T = part.columns["action"]
        rows = part.rows(selected_T)
        hidden_MH = self.forward.hidden(rows) if bool(selected_T.any()) else torch.zeros(0, 1)
        made, found = blank(columns, len(selected_T), width=self.width), dict[str, Tensor]()
        if len(hidden_MH) and {"old", "entropy"} & set(columns):
            found["old"], found["entropy"] = self.head.measure(hidden_MH, rows.labels)
        if len(hidden_MH) and "squares" in columns:
            found["squares"] = self.head.squares(hidden_MH)
        if len(hidden_MH) and {"topk", "ids"} & set(columns):
            head = require_whole_head(self.head)
            found["topk"], found["ids"] = top(head, hidden_MH, self.width)
        for name in set(columns) & found.keys():
            made[name][selected_T] = found[name]
        return made


def _head_of(policy: Policy) -> Tensor:
    """Its weight. Raises ModelError: see `require_plain_head`."""
    if policy.device.type != "meta":
        return require_plain_head(policy)
    output: Tensor = policy.module.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    return output  # without memory it cannot run; only Llama-like models are made so


class Rank:
    """The compute of the engine in one process; every call blocks."""

    scores = frozenset({"old", "entropy", "squares"})
    """Columns that `score` makes."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        *,
        temperature: float,
        seed: int,
        sharding: Sharding | None = None,
    ) -> None:
        if config.sent is Sent.ADAPTERS and config.lora is None:
            raise Unsupported("`sent = adapters` needs `lora`: there are no adapters to send")
        self._policy, self._config, self._seed = policy, config, seed
        self._reference: Model | None = None
        if config.reference and config.lora is None:
            frozen = Policy(copy.deepcopy(policy.module), precision=policy.precision)
            frozen.module.requires_grad_(requires_grad=False)
            self._reference = Model(frozen, config, temperature=temperature, sharding=sharding)
        if config.lora is not None:
            attach(policy, config.lora)
        else:
            policy.module.requires_grad_(requires_grad=True)
        policy.module.eval()  # type: ignore[no-untyped-call]
        self._model = Model(policy, config, temperature=temperature, sharding=sharding)
        sharded = self._model.sharded
        self.masters = self._masters() if sharded is None else sharded.masters(config)
        self.packs = config.packing is not Packing.PADDED and runs_packed(policy)

    def _masters(self) -> Masters:
        return Masters(trained_of(self._policy), self._config)

    @property
    def sharded(self) -> Sharded | None:
        """The weights in parts; None where this is the only rank."""
        return self._model.sharded

    @property
    def width(self) -> int:
        """Ids that a distribution is kept by."""
        return self._model.width

    @property
    def has_reference(self) -> bool:
        """Whether the model before training can be asked."""
        return self._reference is not None or self._config.lora is not None

    def accumulate(self, part: Part, objective: Objective, *, draw: tuple[int, int]) -> Added:
        """Add the gradient of a part, or nothing where it is not finite.

        Args: draw: applied steps and number of the part in its step: names the dropout's noise.
        """
        masks = [part.columns[term.mask] for term in objective.terms]
        selected_T = torch.stack(masks).any(0)
        rows = part.rows(selected_T)
        if not bool(selected_T.any()):
            return Added({}, 0)
        owner_T = torch.repeat_interleave(part.sequences.lengths)
        columns = {name: column[selected_T] for name, column in part.columns.items()}
        columns["owner"] = owner_T[selected_T]
        with self._noise(draw):
            settled, metrics = self._settle(objective, part.sequences, columns, rows)
            spoilt = spoilt_rows(settled.loss, settled.pulls, columns["owner"], part.sequences.ids)
            if not spoilt or self._model.sharded is not None:  # the other ranks wait for this one
                settled.backward()
        return Added(metrics, len(rows.labels), spoilt)

    def _settle(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        rows: Rows,
    ) -> tuple[Settled, dict[str, Measure]]:
        """Forward and loss, ready for backward. Args: columns: of the selected tokens."""
        return self._plan(
            objective, sequences, columns, rows, lambda: self._model.forward.hidden(rows)
        )

    def _plan(
        self,
        objective: Objective,
        sequences: Sequences,
        columns: Mapping[str, Tensor],
        rows: Rows,
        hidden: Callable[[], Tensor],
    ) -> tuple[Settled, dict[str, Measure]]:
        plan = Plan(objective, sequences, columns, self._other(objective, rows))

        def run() -> tuple[Tensor, ...]:
            return plan.measure(self._model.head, hidden(), rows.labels)

        settled = plan.settle(self._model.within(run))
        return settled, plan.metrics()

    def _other(self, objective: Objective, rows: Rows) -> Other | None:
        """The reference's view of the same rows, where its whole distribution is compared with."""
        if "reference_logprobs" not in objective.statistics:
            return None
        with self._as_reference(on=True) as model:
            return model.lend(rows)

    @contextmanager
    def _noise(self, draw: tuple[int, int]) -> Iterator[None]:
        lora = self._config.lora
        if lora is None or not lora.dropout:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(dropping_out(self._policy))
            torch.manual_seed(seed_for(self._seed, "dropout", *draw))
            yield

    def score(
        self, part: Part, columns: Collection[str], *, reference: bool = False
    ) -> dict[str, Tensor]:
        """(T,) fp32 each of `scores`, and `topk`, `ids`, for sampled tokens; 0 elsewhere."""
        with torch.no_grad(), self._as_reference(on=reference) as model:
            return model.score(part, columns)

    @contextmanager
    def _as_reference(self, *, on: bool) -> Iterator[Model]:
        if not on:
            yield self._model
        elif self._reference is not None:
            yield self._reference
        elif self._config.lora is not None:
            with without_adapters(self._policy):
                yield self._model
        else:
            raise Unsupported(
                'no reference is kept: set `reference = true` to use view("reference")'
            )

    def base_digest(self) -> str:
        """A hash of the weights that are not trained; that of nothing without adapters."""
        frozen = {
            name: parameter
            for name, parameter in self._policy.module.named_parameters()
            if not parameter.requires_grad
        }
        return digest_of(frozen)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face model folder. Raises CheckpointError: the disk is full."""
        with on_disk(folder):
            export_policy(self._policy, folder)

    def close(self) -> None:
        """Free gradients; the policy stays usable."""
        self.masters.close()


def trained_of(policy: Policy) -> dict[str, torch.nn.Parameter]:
    """Weights that are learnt, by name."""
    named = policy.module.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad}


def spoilt_rows(loss: Tensor, pulls: Tensor, owner_M: Tensor, ids: Tensor) -> tuple[int, ...]:
    """Ids of rows with a non-finite pull; of all rows where only the loss shows it."""
    bad_M = ~pulls.isfinite().all(0)
    if bool(bad_M.any()):
        return tuple(ids[torch.unique(owner_M[bad_M])].tolist())
    return () if bool(loss.detach().isfinite()) else tuple(ids.tolist())
