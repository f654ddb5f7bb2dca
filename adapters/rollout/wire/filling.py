"""Received weights go into an engine's parameters; none is forgotten (G4)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models import checksum
from hexpo.adapters.models.policy import Policy
from hexpo.application.ports.transfer import Digest
from hexpo.domain.errors import EngineFailed


@attrs.frozen(kw_only=True, eq=False)
class Targets:
    """What an engine wants to be written."""

    parameters: Mapping[str, Tensor]
    """Live tensors by their exported names."""
    tied: Mapping[str, str] = attrs.field(factory=dict)
    """Names that are another one's tensor."""
    frozen: frozenset[str] = frozenset()
    """Names that no update writes."""


def policy_targets(policy: Policy) -> Targets:
    """Those of a model without adapters of its own; a tied head is the embedding."""
    parameters = {name: policy.weight(name) for name in policy.names()}
    tied = {}
    if policy.config.tie_word_embeddings and "lm_head.weight" not in parameters:
        tied["lm_head.weight"] = "model.embed_tokens.weight"
    return Targets(parameters=parameters, tied=tied)


@torch.no_grad()
def fill(targets: Targets, stream: Iterable[tuple[str, Tensor]]) -> Digest:
    """Copy each tensor to where it belongs, cast to the engine's own type.

    Returns: the digest of what came, before it was cast.
    Raises: EngineFailed: a name that the engine lacks, another shape, a tied name that was sent on
        its own, or a parameter that was neither written, tied to a written one nor frozen: by name.
    """
    digester, written = checksum.digester(), set[str]()
    for name, tensor in stream:
        digester.add(name, tensor)
        _parameter(targets, name, tensor).copy_(tensor)
        written.add(name)
    if missing := _unwritten(targets, written):
        raise EngineFailed(
            f"{len(missing)} parameters of the engine were neither written, tied to a written one"
            f" nor frozen: {_some(missing)}; the engine would go on with older weights there"
        )
    return digester.digest


def _parameter(targets: Targets, name: str, tensor: Tensor) -> Tensor:
    if name in targets.tied:
        raise EngineFailed(
            f"{name} was sent, but the engine ties it to {targets.tied[name]}: trainer and engine"
            " must agree on tie_word_embeddings"
        )
    found = targets.parameters.get(name)
    if found is None:
        raise EngineFailed(
            f"the engine has no parameter {name}, which the trainer sent; it has, for example,"
            f" {_some(targets.parameters)}"
        )
    if found.shape != tensor.shape:
        raise EngineFailed(
            f"{name} has shape {tuple(tensor.shape)}, the engine's has {tuple(found.shape)}"
        )
    return found


def _unwritten(targets: Targets, written: Collection[str]) -> list[str]:
    own = [name for name in targets.parameters if name not in targets.frozen]
    reached = {name for name, to in targets.tied.items() if to in written}
    return sorted({*own, *targets.tied} - set(written) - reached - targets.frozen)


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
