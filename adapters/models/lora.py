"""Low-rank adapters on a frozen base (Hu et al. 2021, 2106.09685), by peft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from hexpo.adapters.models.policy import Policy
from hexpo.domain.errors import MissingExtra, ModelError

ADAPTER = "default"
"""The adapter's name inside peft."""


@attrs.frozen(kw_only=True)
class Lora:
    """Settings of the adapters: W + alpha / rank * B A on each target."""

    rank: int = attrs.field(default=16, validator=attrs.validators.ge(1))
    """Width of the two factors."""
    alpha: float = attrs.field(default=32.0, validator=attrs.validators.gt(0.0))
    """Their product is scaled by alpha / rank."""
    dropout: float = attrs.field(
        default=0.0, validator=[attrs.validators.ge(0.0), attrs.validators.lt(1.0)]
    )
    """Share of the adapter's inputs that is dropped in training."""
    targets: tuple[str, ...] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    """Names of the linear layers that get one."""


def attach(policy: Policy, lora: Lora) -> None:
    """Put adapters on the policy's module, in place, and freeze everything else.

    Raises: MissingExtra: peft is missing. ModelError: the model lacks a target, or holds it in a
        form that adapters cannot sit on (fused experts), which peft would skip in silence.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise MissingExtra("low-rank adapters need peft: pip install 'hexpo[lora]'") from error
    found = {name.rpartition(".")[2] for name, _ in policy.module.named_modules()}
    if missing := [target for target in lora.targets if target not in found]:
        raise ModelError(
            f"{policy.config.model_type} has no linear layers named {', '.join(missing)};"
            " set lora.targets to layers that it has"
        )
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    inject_adapter_in_model(settings, policy.module, adapter_name=ADAPTER)
    for name, parameter in policy.module.named_parameters():
        parameter.data = parameter.data.to(policy.precision.dtype)
        parameter.requires_grad_(".lora_" in name)


def is_adapted(policy: Policy) -> bool:
    """Whether adapters sit on the policy."""
    return any(True for _ in _layers(policy))


def _layers(policy: Policy) -> Iterator[Any]:
    for module in policy.module.modules():
        if hasattr(module, "lora_A"):
            yield module


@contextmanager
def without_adapters(policy: Policy) -> Iterator[None]:
    """The base model alone, inside the block."""
    layers = list(_layers(policy))
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


@contextmanager
def dropping_out(policy: Policy) -> Iterator[None]:
    """Dropout of the adapters' inputs, inside the block; outside there is none."""
    drops = [layer.lora_dropout for layer in _layers(policy)]
    for drop in drops:
        drop.train()
    try:
        yield
    finally:
        for drop in drops:
            drop.eval()
