"""Tensor parallelism (Shoeybi et al. 2019, 1909.08053): which weight is cut along which axis, and
what is refused. Cut weights are DTensors of the team's mesh; FSDP2 then shards each rank's piece.

Queries, keys, values, gate and up are cut by output, their followers by input, so that a layer
costs two sums each way. Embedding and head are cut by vocabulary; norms are whole everywhere.
"""

from __future__ import annotations

from typing import Any

import torch

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.policy import Policy
from hexpo.adapters.models.spec import DecoderSpec
from hexpo.adapters.training.fsdp.config import Config
from hexpo.domain.errors import Unsupported

_BY_OUTPUT = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})
_BY_INPUT = frozenset({"o_proj", "down_proj"})
_BY_VOCABULARY = frozenset({"embed_tokens", "lm_head"})


def axis_of(name: str) -> int | None:
    """The axis that a weight is cut along, by its name; None: every rank has it whole."""
    owner, _, leaf = name.rpartition(".")
    kind = owner.rpartition(".")[2]
    if kind in _BY_OUTPUT or (kind in _BY_VOCABULARY and leaf == "weight"):
        return 0
    return 1 if kind in _BY_INPUT and leaf == "weight" else None


def spread(policy: Policy, mesh: Any) -> None:
    """Replace each weight that is cut by this rank's piece, in place; a tied one stays tied.

    Args: mesh: a DeviceMesh of one dimension, the team's.
    """
    from torch.distributed.tensor import Shard, distribute_tensor

    made: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    for prefix, module in policy.module.named_modules():
        for leaf, whole in list(module.named_parameters(prefix, recurse=False)):
            axis = axis_of(leaf)
            if axis is None:
                continue
            if id(whole) not in made:
                piece = distribute_tensor(whole.detach(), mesh, [Shard(axis)], src_data_rank=None)
                own = torch.nn.Parameter(piece, requires_grad=whole.requires_grad)
                made[id(whole)] = (whole, own)  # the whole one lives on, so that its id is its own
            setattr(module, leaf.rpartition(".")[2], made[id(whole)][1])


def require_teams(config: Config, ranks: int, spec: DecoderSpec | None, kind: str) -> None:
    """Refuse what tensor and sequence parallelism cannot do, before anything is loaded.

    Args: spec: of the model; None: it is not Llama-like. kind: its type's name.
    Raises: Unsupported: names the setting.
    """
    if config.mtp_depths:
        raise Unsupported("mtp_depths: multi-token heads learn in one process; use 1 rank or 0")
    tensor, sequence = config.tensor_parallel, config.sequence_parallel
    team = tensor * sequence
    if team == 1:
        return
    what = f"tensor_parallel = {tensor} and sequence_parallel = {sequence}"
    if ranks % team:
        raise Unsupported(f"{what} need a multiple of {team} training ranks, not {ranks}")
    if spec is None:
        raise Unsupported(f"{what}: only Llama-like models (llama, qwen2, qwen3), not {kind!r}")
    if config.packing is Packing.PADDED:
        raise Unsupported(f"{what} run packed rows only: set packing = auto")
    if tensor > 1 and config.lora is not None:
        raise Unsupported(f"tensor_parallel = {tensor} trains all weights: remove `lora` or set 1")
    for name, count, by in (
        ("attention heads", spec.heads, team),
        ("key and value heads", spec.kv_heads, team),
        ("inner MLP units", spec.intermediate, tensor),
    ):
        if count % by:
            raise Unsupported(f"{what} need a multiple of {by} {name}; this model has {count}")
