"""One of several ranks that train a policy together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.loading import load_config, load_policy
from hexpo.adapters.models.policy import Policy, Precision, digest_of
from hexpo.adapters.models.spec import spec_of
from hexpo.adapters.training.backend import Abilities, Added, Gradient, Part, Progress
from hexpo.adapters.training.fsdp import checkpoint
from hexpo.adapters.training.fsdp.building import require_alone
from hexpo.adapters.training.fsdp.config import Config, Sent
from hexpo.adapters.training.fsdp.critic import CriticRank
from hexpo.adapters.training.fsdp.foresight import require_packed
from hexpo.adapters.training.fsdp.masters import ShardMasters
from hexpo.adapters.training.fsdp.parking import Parking
from hexpo.adapters.training.fsdp.places import Piece
from hexpo.adapters.training.fsdp.rank import Rank
from hexpo.adapters.training.fsdp.reading import Source, empty_policy
from hexpo.adapters.training.fsdp.schedule import learning_rate
from hexpo.adapters.training.fsdp.sharding import Sharded, Sharding
from hexpo.adapters.training.fsdp.spread import require_teams
from hexpo.adapters.training.fsdp.stream import exported
from hexpo.adapters.training.wire import blank
from hexpo.application.ports.transfer import Weight
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.metrics import Metrics, latest, mean_of, total
from hexpo.domain.objective import Loss, Objective, Term
from hexpo.domain.seeds import seed_for


def build_rank(
    config: Config,
    *,
    policy: Policy,
    temperature: float,
    total_steps: int,
    seed: int,
    rank: int,
    ranks: int,
    release: Callable[[], None] = lambda: None,
    source: Source | None = None,
) -> RankBackend:
    """This rank of a backend; torch's default process group has to be there. All ranks together.

    Args: source: where the weights are read, if the policy's module has no memory yet.
    Raises: MissingExtra, ModelError, Unsupported: the model or the setting does not fit.
    """
    require_teams(config, ranks, policy.spec, policy.config.model_type)
    device = policy.device.type if source is None else source.device
    sharding = Sharding.meet(config, device, rank=rank, ranks=ranks, source=source)
    worker = (
        CriticRank(policy, config, seed=seed, sharding=sharding)
        if config.value_head
        else Rank(policy, config, temperature=temperature, seed=seed, sharding=sharding)
    )
    return RankBackend(worker, config, policy, total_steps=total_steps, release=release)


def require_ranks(config: Config, *, ranks: int, model: str) -> None:
    """Refuse settings that do not fit the number of ranks; reads the model's shape at most.

    Args: model: where it is found; see `load_policy`.
    Raises: Unsupported: names the setting. ModelError, MissingExtra: there is no such model.
    """
    if ranks == 1:
        require_alone(config)
        if config.mtp_depths:
            require_packed(config.packing, load_config(model))
    elif config.tensor_parallel * config.sequence_parallel > 1 or config.mtp_depths:
        shape = load_config(model)
        require_teams(config, ranks, spec_of(shape), shape.model_type)


@attrs.frozen(kw_only=True)
class Model:
    """What a rank's process needs to make its part of a model. Plain: it crosses processes."""

    config: Config
    path: str
    """Where the model is found; see `load_policy`."""
    precision: Precision
    device: str = "cpu"
    temperature: float
    """That of the rollout."""
    total_steps: int
    seed: int


RANK = f"{__name__}:open_rank"
"""Makes a rank in its own process."""


def open_rank(model: Model, *, rank: int, ranks: int) -> RankBackend:
    """Load this rank's part of a model. All ranks together."""
    torch.manual_seed(seed_for(model.seed, "adapters"))  # which begin alike on all ranks
    shape = load_config(model.path)
    require_teams(model.config, ranks, spec_of(shape), shape.model_type)
    found = None
    if model.config.lora is None:  # adapters are made, not read
        found = empty_policy(model.path, precision=model.precision, device=model.device)
    policy, source = found or (
        load_policy(model.path, precision=model.precision, device=model.device),
        None,
    )
    return build_rank(
        model.config,
        policy=policy,
        temperature=model.temperature,
        total_steps=model.total_steps,
        seed=model.seed,
        rank=rank,
        ranks=ranks,
        source=source,
    )


class RankBackend:
    """Implements Backend over FSDP2."""

    def __init__(
        self,
        rank: Rank,
        config: Config,
        policy: Policy,
        *,
        total_steps: int,
        release: Callable[[], None],
    ) -> None:
        self._rank, self._config, self._policy = rank, config, policy
        self._total_steps, self._release = total_steps, release
        if rank.sharded is None or not isinstance(rank.masters, ShardMasters):
            raise Unsupported("a rank of several needs a sharded model: use build_rank")
        self._sharded: Sharded = rank.sharded
        function = _nothing_of_value if config.value_head else _nothing
        self._nothing = Objective(terms=(Term(name="nothing", loss=Loss(function=function)),))
        self._masters = rank.masters
        self._parked: Parking | None = None

    @property
    def abilities(self) -> Abilities:
        """As the family allows."""
        return Abilities(
            packs=self._rank.packs,
            scores=self._rank.scores,
            has_reference=self._rank.has_reference,
            micro_tokens=self._config.micro_tokens,
            max_skipped_steps=self._config.max_skipped_steps,
            device=self._policy.device.type,
            saves_aside=self._config.save_aside,
            team=self._sharded.sharding.team,
        )

    def accumulate(
        self, part: Part | None, objective: Objective, *, draw: tuple[int, int], last: bool
    ) -> Added:
        """Add a micro-batch; where nothing of it is trained here, a gradient of 0."""
        self._sharded.gather_late(last=last)
        sharding = self._sharded.sharding
        if part is not None:
            masks = [part.columns[term.mask] for term in objective.terms]
            if bool(torch.stack(masks).any()):
                own = (draw[0], draw[1] * sharding.ranks + sharding.rank)
                return self._rank.accumulate(part, objective, draw=own)
        lends = "reference_logprobs" in objective.statistics  # all ranks run the reference, too
        nothing = _NOTHING_COMPARED if lends else self._nothing
        self._rank.accumulate(_dummy(), nothing, draw=draw)
        return Added({}, 0)

    def score(
        self, part: Part | None, columns: Collection[str], *, reference: bool
    ) -> dict[str, Tensor]:
        """As the rank scores; a part without a sampled token costs the others nothing."""
        if part is not None and bool(part.columns["action"].any()):
            return self._rank.score(part, columns, reference=reference)
        self._rank.score(_dummy(), columns, reference=reference)
        tokens = 0 if part is None else len(part.columns["action"])
        return blank(columns, tokens, width=self._rank.width)

    def gradient(self) -> Gradient:
        """Over all ranks."""
        return self._masters.gradient()

    def apply(self, gradient: Gradient, *, applied: int) -> Metrics:
        """Clip, step, forget."""
        rate = learning_rate(self._config, applied=applied, total_steps=self._total_steps)
        self._masters.apply(gradient.norm, rate)
        self._release()
        clipped = bool(self._config.clip_norm) and gradient.norm > self._config.clip_norm
        return {
            "train/gradient_norm": mean_of(gradient.norm, 1),
            "train/clipped_steps": total(clipped),
            "train/learning_rate": latest(rate),
            "train/skipped_steps": total(0),
        }

    def forget(self) -> None:
        """Gradients back to zero."""
        self._masters.forget()
        self._release()

    def weights(self) -> Iterator[Weight]:
        """A layer at a time; in the adapters' case those of each layer."""
        sent = self._config.sent
        for names in self._sharded.buckets():
            yield from exported(self._policy, names, sent=sent)

    def save(self, folder: Path) -> dict[str, int]:
        """This rank's parts. Works while the device's memory is given back."""
        masters = self._parked or self._masters
        sharding = self._sharded.sharding
        return checkpoint.write_part(
            folder, masters, rank=sharding.number, ranks=sharding.total, parts=self._own_parts()
        )

    def snapshot(self) -> Callable[[Path], dict[str, int]]:
        """Weights and moments once more in host memory, until they are written."""
        masters = self._parked or self._masters
        checkpoint.require_finite(masters)
        sharding = self._sharded.sharding
        return partial(
            checkpoint.write_part,
            saved=checkpoint.Copies.of(masters),
            rank=sharding.number,
            ranks=sharding.total,
            parts=self._own_parts(),
        )

    def _own_parts(self) -> dict[str, Piece]:
        return {n: part for n, part in self._sharded.parts().items() if n in self._masters.own}

    def load(self, folder: Path, progress: Progress) -> None:
        """This rank's rows of what was saved."""
        checkpoint.read_part(folder, self._masters, self._sharded.parts())

    def export(self, folder: Path) -> None:
        """Rank 0 holds the whole model in host memory while it writes."""
        whole = _Whole(self._policy, self._sharded)
        if self._sharded.sharding.number == 0:
            export_policy(whole, folder)
        else:
            for _ in whole.named_weights():
                pass

    def base_digest(self) -> str:
        """As one process has it."""
        return digest_of(dict(self._sharded.frozen()))

    def offload(self) -> None:
        """Parts, gradients and moments wait in host memory."""
        if self._parked is None:
            self._parked = Parking(self._masters, self._sharded.resident())
            self._release()

    def onload(self) -> None:
        """Bring them back to where they were."""
        if self._parked is not None:
            self._parked.restore()
            self._parked = None

    def close(self) -> None:
        """Free gradients."""
        self._rank.close()


class _Whole(Policy):
    """A sharded policy for whoever reads it whole, on all ranks together."""

    def __init__(self, policy: Policy, sharded: Sharded) -> None:
        super().__init__(policy.module, precision=policy.precision)
        self._sharded = sharded

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Copies, a bucket after the other."""
        for names in self._sharded.buckets():
            for weight in exported(self, names, sent=Sent.MERGED):
                yield weight.name, weight.tensor.cpu().clone()


def _nothing(*, policy_T: Tensor) -> Tensor:
    return policy_T * 0.0


def _nothing_of_value(*, prediction_T: Tensor) -> Tensor:
    return prediction_T * 0.0


def _nothing_compared(*, policy_logprobs_T: Tensor, reference_logprobs_T: Tensor) -> Tensor:
    return (policy_logprobs_T[:, 0] - reference_logprobs_T[:, 0]) * 0.0


_NOTHING_COMPARED = Objective(terms=(Term(name="nothing", loss=Loss(function=_nothing_compared)),))


def _dummy() -> Part:
    """Two tokens that cost what every micro-batch costs in collectives, and weigh nothing."""
    flag_T = torch.tensor([False, True])
    sequences = Sequences.of(
        {
            "id": torch.tensor([-1]),
            "length": torch.tensor([2]),
            "weights": torch.ones(1, 1, dtype=torch.float64),
        }
    )
    columns = {
        "token": torch.zeros(2, dtype=torch.int64),
        "position": torch.arange(2),
        "action": flag_T,
        "trained": flag_T,
    }
    return Part(sequences, columns)
