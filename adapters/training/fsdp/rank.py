"""One rank's own work, without a process group and without waiting: forward, backward, step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.families import (
    Forward,
    Packing,
    forward_of,
    kernels_for,
    require_plain_head,
    runs_packed,
)
from hexpo.adapters.models.head import Head, gradients_of
from hexpo.adapters.models.lora import attach, dropping_out, without_adapters
from hexpo.adapters.models.policy import Policy, digest_of
from hexpo.adapters.training.backend import Added, Part
from hexpo.adapters.training.fsdp.config import Config, Sent
from hexpo.adapters.training.fsdp.masters import Masters
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Measure, mean_of, merge, total
from hexpo.domain.objective import Objective
from hexpo.domain.seeds import seed_for

if TYPE_CHECKING:
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
        self._head = Head(
            weight_VH=require_plain_head(policy),
            kernels=kernels,
            temperature=temperature,
            chunk=config.head_tokens,
        )
        self.sharded: Sharded | None = None
        if sharding is not None:
            self.forward, self.sharded = sharding.shard(policy, self.forward, kernels, config)

    @property
    def head(self) -> Head:
        """The output layer; of a sharded model only inside `within`."""
        if self.sharded is None:
            return self._head
        output = self._policy.module.get_output_embeddings()  # type: ignore[no-untyped-call]
        return attrs.evolve(self._head, weight_VH=output.weight)

    def within(self, work: Callable[[], _T]) -> _T:
        """Run what needs the weights; of a sharded model all ranks do so together."""
        return work() if self.sharded is None else self.sharded.within(work)

    def score(self, part: Part, columns: Collection[str]) -> dict[str, Tensor]:
        """(T,) fp32 log-probs, entropies and sums of squared probabilities, as asked."""
        return self.within(lambda: self._score(part, columns))

    def _score(self, part: Part, columns: Collection[str]) -> dict[str, Tensor]:
        selected_T = part.columns["action"]
        rows = part.rows(selected_T)
        hidden_MH = self.forward.hidden(rows) if bool(selected_T.any()) else torch.zeros(0, 1)
        found: dict[str, Tensor] = {}
        if len(hidden_MH) and not {"squares"}.issuperset(columns):
            found["old"], found["entropy"] = self.head.measure(hidden_MH, rows.labels)
        if len(hidden_MH) and "squares" in columns:
            found["squares"] = self.head.squares(hidden_MH)
        return {name: _on(selected_T, found.get(name)) for name in columns}


def _on(selected_T: Tensor, values_M: Tensor | None) -> Tensor:
    """(T,) fp32: values at their tokens, 0 elsewhere."""
    column_T = torch.zeros(len(selected_T))
    if values_M is not None:
        column_T[selected_T] = values_M
    return column_T


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
        self.masters = (
            Masters(trained_of(policy), config) if sharded is None else sharded.masters(config)
        )
        self.packs = config.packing is not Packing.PADDED and runs_packed(policy)

    @property
    def sharded(self) -> Sharded | None:
        """The weights in parts; None where this is the only rank."""
        return self._model.sharded

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
        evaluation = _Evaluation(objective, part.sequences, columns)

        def run() -> tuple[Tensor, Tensor]:
            hidden_MH = self._model.forward.hidden(rows)
            if objective.separable:
                return self._model.head.one_pass(hidden_MH, rows.labels, evaluation)
            return self._model.head.two_pass(hidden_MH, rows.labels)

        with self._noise(draw):
            measured = self._model.within(run)
            if objective.separable:
                loss, pulls = measured
            else:
                leaves = [column.detach().requires_grad_() for column in measured]
                loss = evaluation(slice(None), *leaves)
                pulls = gradients_of(loss, leaves)
            spoilt = spoilt_rows(loss, pulls, columns["owner"], part.sequences.ids)
            if not spoilt or self._model.sharded is not None:  # the other ranks wait for this one
                if objective.separable:
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    torch.autograd.backward(measured, pulls.unbind())
        return Added(evaluation.metrics(), len(rows.labels), spoilt)

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
        """(T,) fp32 each of `scores`, for sampled tokens; 0 elsewhere."""
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

    def close(self) -> None:
        """Free gradients; the policy stays usable."""
        self.masters.close()


def trained_of(policy: Policy) -> dict[str, torch.nn.Parameter]:
    """Weights that are learnt, by name."""
    named = policy.module.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad}


class _Evaluation:
    """The objective on slices of a part's selected tokens, with the metrics of all of them."""

    def __init__(
        self, objective: Objective, sequences: Sequences, columns: Mapping[str, Tensor]
    ) -> None:
        self._objective, self._sequences, self._columns = objective, sequences, columns
        self._metrics: list[Mapping[str, Measure]] = []

    def __call__(self, span: slice, policy_N: Tensor, entropy_N: Tensor) -> Tensor:
        columns = {name: column[span] for name, column in self._columns.items()}
        columns["policy"], columns["entropy"] = policy_N, entropy_N
        loss, metrics = self._objective.evaluate(columns, self._sequences)
        count = policy_N.numel()
        own = {
            "train/entropy": mean_of(float(entropy_N.detach().sum()), count),
            "train/tokens": total(count),
        }
        self._metrics.append({**metrics, **own})
        return loss

    def metrics(self) -> dict[str, Measure]:
        return merge(self._metrics)


def spoilt_rows(loss: Tensor, pulls: Tensor, owner_M: Tensor, ids: Tensor) -> tuple[int, ...]:
    """Ids of rows with a non-finite pull; of all rows where only the loss shows it."""
    bad_M = ~pulls.isfinite().all(0)
    if bool(bad_M.any()):
        return tuple(ids[torch.unique(owner_M[bad_M])].tolist())
    return () if bool(loss.detach().isfinite()) else tuple(ids.tolist())
