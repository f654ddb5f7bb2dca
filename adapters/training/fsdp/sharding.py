"""A policy's weights in parts on all ranks, by FSDP2 (Zhao et al. 2023, 2304.11277; torch's
`fully_shard`): each layer is gathered when it runs, and its gradient summed back to the parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.families import Forward
from hexpo.adapters.models.head import Head
from hexpo.adapters.models.kernels import Kernels
from hexpo.adapters.models.llama import LlamaForward
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.training.fsdp.config import Config
from hexpo.adapters.training.fsdp.heads import SharedHead, VocabularyHead, per_token
from hexpo.adapters.training.fsdp.masters import ShardMasters
from hexpo.adapters.training.fsdp.parallel import TeamForward, local
from hexpo.adapters.training.fsdp.places import Piece, cut, whole
from hexpo.adapters.training.fsdp.reading import Source, fill
from hexpo.adapters.training.fsdp.spread import axis_of, spread
from hexpo.adapters.training.fsdp.team import Team
from hexpo.domain.errors import ModelError

_T = TypeVar("_T")


@attrs.frozen(kw_only=True, eq=False)
class Sharding:
    """The ranks that share the weights. Ranks of a team are neighbours, those that share tensors
    nearest; a team computes a micro-batch together."""

    mesh: Any
    """A DeviceMesh of one dimension: the ranks among which FSDP2 shards."""
    rank: int
    """This one's number in it."""
    ranks: int
    tensor: Team | None = None
    """Ranks that cut weights among them; None: this one has them whole."""
    tensor_mesh: Any = None
    """Those ranks as a DeviceMesh."""
    sequence: Team | None = None
    """Ranks that cut tokens among them."""
    source: Source | None = None
    """Where the weights of a module without memory are read; None: it has them."""

    @property
    def number(self) -> int:
        """Of this rank among all."""
        return self.rank if self.tensor is None else self.rank * self.tensor.size + self.tensor.rank

    @property
    def total(self) -> int:
        """All ranks."""
        return self.ranks if self.tensor is None else self.ranks * self.tensor.size

    @property
    def team(self) -> int:
        """How many ranks compute a micro-batch together."""
        return math.prod(one.size for one in (self.tensor, self.sequence) if one is not None)

    @staticmethod
    def meet(
        config: Config, device: str, *, rank: int, ranks: int, source: Source | None = None
    ) -> Sharding:
        """All ranks together. Args: device: its kind."""
        from torch.distributed.device_mesh import init_device_mesh

        tensor, sequence = config.tensor_parallel, config.sequence_parallel
        if tensor == sequence == 1:
            mesh = init_device_mesh(device, (ranks,), mesh_dim_names=("shards",))
            return Sharding(mesh=mesh, rank=rank, ranks=ranks, source=source)
        mesh = init_device_mesh(
            device, (ranks // tensor, tensor), mesh_dim_names=("shards", "tensor")
        )
        by_tokens = None
        if sequence > 1:
            shape = (ranks // (tensor * sequence), sequence, tensor)
            names = ("data", "sequence", "tensor")
            by_tokens = init_device_mesh(device, shape, mesh_dim_names=names)["sequence"]
        return Sharding(
            mesh=mesh["shards"],
            rank=rank // tensor,
            ranks=ranks // tensor,
            tensor=_team(mesh["tensor"]) if tensor > 1 else None,
            tensor_mesh=mesh["tensor"],
            sequence=None if by_tokens is None else _team(by_tokens),
            source=source,
        )

    def shard(
        self, policy: Policy, forward: Forward, kernels: Kernels, config: Config
    ) -> tuple[Forward, Sharded]:
        """Keep only this rank's part of every weight, in place. Those that are learnt become
        fp32, and each layer is computed in the policy's precision.

        Raises: ModelError: the family's module has no list of layers.
        """
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
        if self.tensor is not None:
            spread(policy, self.tensor_mesh)
        layers = layers_of(policy)
        if config.compiled:
            for layer in layers:
                layer.compile()
        options = _options(policy, self.mesh, config)
        for layer in layers:
            _fully_shard(layer, **options, reshard_after_forward=not config.keep_gathered)
        head = getattr(policy.module, "value_head", None)
        if head is not None:  # single precision, whatever the layers are computed in
            _fully_shard(head, mesh=self.mesh)
        root: Any = policy.module
        root.run_whole = _call
        _fully_shard(root, **options, reshard_after_forward=False)
        _as_forward(root, "run_whole")
        if isinstance(forward, LlamaForward):
            forward = _LayersAsModules(
                policy,
                kernels,
                layers,
                tensor=self.tensor,
                sequence=self.sequence,
                checkpointing=config.activation_checkpointing,
            )
        units = [root, *layers, *([] if head is None else [head])]
        for unit in units:
            unit.set_force_sum_reduction_for_comms(enable=True)  # gloo has no other
            unit.set_gradient_divide_factor(1.0)  # parts are weighted for the whole step: a sum
        if self.source is not None:
            places = {name: part.place for name, part in parts_of(self, policy).items()}
            fill(policy, places, self.source)
        return forward, Sharded(self, policy, units, config)


def _team(mesh: Any) -> Team:
    return Team(group=mesh.get_group(), rank=mesh.get_local_rank(), size=mesh.size())


def _call(work: Callable[[], _T]) -> _T:
    return work()


def _options(policy: Policy, mesh: Any, config: Config) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options: dict[str, Any] = {"mesh": mesh}
    if policy.precision is not Precision.FP32:
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=policy.precision.dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
    if config.cpu_offload:
        pinned = policy.device.type == "cuda"
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=pinned)
    return options


def _fully_shard(module: Any, **options: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, **options)


def _as_forward(module: Any, method: str) -> None:
    from torch.distributed.fsdp import register_fsdp_forward_method

    register_fsdp_forward_method(module, method)


def layers_of(policy: Policy) -> list[Any]:
    """The decoder's layers. Raises ModelError: the module has no list of them."""
    layers = getattr(policy.module.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(
            f"{policy.config.model_type}: its module has no `layers`, so it cannot be sharded"
        )
    return list(layers)


class _LayersAsModules(TeamForward):
    """The fast forward, with each layer entered the way that FSDP2 watches."""

    def __init__(
        self,
        policy: Policy,
        kernels: Kernels,
        layers: list[Any],
        *,
        tensor: Team | None,
        sequence: Team | None,
        checkpointing: bool,
    ) -> None:
        super().__init__(
            policy, kernels, tensor=tensor, sequence=sequence, checkpointing=checkpointing
        )
        for layer in layers:
            layer.run_packed = partial(super()._layer, layer)
            _as_forward(layer, "run_packed")

    def _layer(self, layer: Any, x_NH: Tensor, *place: Any) -> Tensor:
        return layer.run_packed(x_NH, *place)  # type: ignore[no-any-return]


class Sharded:
    """What this rank holds, and how all ranks together make use of it."""

    def __init__(
        self, sharding: Sharding, policy: Policy, units: list[Any], config: Config
    ) -> None:
        self.sharding, self._policy = sharding, policy
        self._units, self._config = units, config
        self._parameters: dict[str, Any] = dict(policy.module.named_parameters())

    def masters(self, config: Config) -> ShardMasters:
        """What learns this rank's parts."""
        trained = self._trained()
        alike = self.sharding.tensor is not None and self.sharding.tensor.rank > 0
        own = {name for name in trained if axis_of(name) is not None or not alike}
        return ShardMasters(trained, config, own=frozenset(own))

    def head(self, plain: Head) -> Head | SharedHead:
        """The output layer; only inside `within`."""
        output = self._policy.module.get_output_embeddings()  # type: ignore[no-untyped-call]
        team, sequence = self.sharding.tensor, self.sharding.sequence
        head = attrs.evolve(plain, weight_VH=local(output.weight))
        if team is not None:
            settings = attrs.asdict(head, recurse=False)
            span = team.span(int(self._policy.config.vocab_size))
            head = VocabularyHead(**settings, team=team, span=span)
        return head if sequence is None else SharedHead(head=head, team=sequence)

    def per_token(self, hidden_MH: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """(M,) what `work` gives for each token, computed once by a team."""
        team = self.sharding.sequence
        return work(hidden_MH) if team is None else per_token(team, hidden_MH, work)

    def resident(self) -> list[Tensor]:
        """This rank's part of every weight."""
        return [parameter._local_tensor.detach() for parameter in self._parameters.values()]

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        """This rank's part of each weight that is learnt, as a plain tensor on the same memory."""
        found = {}
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                part = torch.nn.Parameter(parameter._local_tensor.detach())
                parameter.grad = torch.zeros_like(parameter)
                part.grad = parameter.grad._local_tensor
                found[name] = part  # masters are fp32 already, and keep this gradient
        return found

    def within(self, work: Callable[[], _T]) -> _T:
        """Run work in the root module's forward: the weights beside the layers are whole."""
        root = self._units[0]
        made: _T = root.run_whole(work)
        if not torch.is_grad_enabled():
            root.reshard()  # no backward follows that would do it, and the parts may change
        return made

    def gather_late(self, *, last: bool) -> None:
        """Before a backward: whether gradients are summed over ranks now."""
        self._units[0].set_requires_gradient_sync(last or not self._config.reduce_late)

    @contextmanager
    def _gathered(self, unit: Any) -> Iterator[None]:
        unit.unshard()
        try:
            yield
        finally:
            unit.reshard()

    def buckets(self) -> Iterator[list[str]]:
        """Names of the weights that are whole until the next is asked for; all ranks together."""
        names = self._policy.names()
        prefixes = {id(module): name for name, module in self._policy.module.named_modules()}
        of_layers = [f"{prefixes[id(unit)]}." for unit in self._units[1:]]
        rest = [name for name in names if not name.startswith(tuple(of_layers))]
        own = [rest, *([n for n in names if n.startswith(prefix)] for prefix in of_layers)]
        for unit, bucket in zip(self._units, own, strict=True):
            with self._gathered(unit):
                yield bucket

    def frozen(self) -> Iterator[tuple[str, Tensor]]:
        """Whole weights that are not learnt, by name in order; all ranks together."""
        for name in sorted(self._parameters):
            parameter = self._parameters[name]
            if not parameter.requires_grad:
                yield name, parameter.full_tensor()

    def parts(self) -> dict[str, Piece]:
        """Which part of each weight that is learnt lies here."""
        parts = parts_of(self.sharding, self._policy)
        return {n: parts[n] for n, one in self._parameters.items() if one.requires_grad}


def parts_of(sharding: Sharding, policy: Policy) -> dict[str, Piece]:
    """Which part of each weight lies on this rank."""
    found = {}
    for name, parameter in policy.module.named_parameters():
        place = whole(parameter.shape).place
        axis, team = axis_of(name), sharding.tensor
        if team is not None and axis is not None:
            place = cut(place, axis, team.rank, team.size)
        place = cut(place, 0, sharding.rank, sharding.ranks)
        found[name] = Piece(place, tuple(parameter.shape))
    return found
