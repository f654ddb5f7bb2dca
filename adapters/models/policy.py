"""A loaded causal language model, and its weights by their Hugging Face names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hexpo.adapters.models.spec import DecoderSpec, spec_of
from hexpo.domain.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class Precision(Enum):
    """What the working weights and activations are stored in."""

    FP32 = "fp32"
    """Single precision."""
    BF16 = "bf16"
    """Brain floats; whoever trains keeps single precision masters of its own."""

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype."""
        return torch.float32 if self is Precision.FP32 else torch.bfloat16


class Policy:
    """A model that trainer and rollout share: one module, read by name.

    Whoever trains changes the module's parameters in place; `weight` always gives the present
    effective weight, low-rank adapters merged in.
    """

    def __init__(self, module: PreTrainedModel, *, precision: Precision) -> None:
        self.module = module
        self.precision = precision

    @property
    def config(self) -> PretrainedConfig:
        """The Hugging Face configuration."""
        return self.module.config

    @property
    def spec(self) -> DecoderSpec | None:
        """The shape of a Llama-like decoder, None for other families."""
        return spec_of(self.config)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(self.module.parameters()).device

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that the model's own files say end an answer, in increasing order."""
        sources = (self.config, getattr(self.module, "generation_config", None))
        found: set[int] = set()
        for source in sources:
            ids = getattr(source, "eos_token_id", None)
            found.update([ids] if isinstance(ids, int) else ids or [])
        return tuple(sorted(found))

    def weight(self, name: str) -> Tensor:
        """The effective weight of a name such as `model.layers.0.self_attn.q_proj.weight`,
        without gradient. It is the live tensor where no adapter sits on it, else a fresh sum.

        Raises: ModelError: the model has no such weight.
        """
        path, _, leaf = name.rpartition(".")
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            embedding: Any = self.module.get_input_embeddings()
            return embedding.weight.detach()  # type: ignore[no-any-return]
        try:
            owner: Any = self.module.get_submodule(path)
            if leaf == "weight" and hasattr(owner, "get_delta_weight"):
                return self._merged(owner)
            value = getattr(getattr(owner, "base_layer", owner), leaf)
        except AttributeError as error:
            raise ModelError(f"{self.config.model_type} has no weight {name!r}") from error
        if not isinstance(value, Tensor):
            raise ModelError(f"{self.config.model_type} has no weight {name!r}")
        return value.detach()

    def _merged(self, layer: Any) -> Tensor:
        base: Tensor = layer.base_layer.weight.detach()
        with torch.no_grad():
            for adapter in layer.active_adapters:
                if adapter in layer.lora_A:
                    base = base + layer.get_delta_weight(adapter).to(base.dtype)
        return base

    def names(self) -> list[str]:
        """Names of all weights as the family's own code has them, adapters left out, a tied head
        named once (as the embedding)."""
        seen: set[int] = set()
        names = []
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if ".lora_" in name or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            names.append(name.replace(".base_layer.", "."))
        return names

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under the name that the family's published folders use, adapters merged.

        Families whose code fuses tensors (experts) come apart again, so that any engine that reads
        Hugging Face folders takes the stream.
        """
        from transformers.core_model_loading import revert_weight_conversion

        own = {name: self.weight(name) for name in self.names()}
        yield from revert_weight_conversion(self.module, own).items()

    def digest(self) -> str:
        """A hash of all effective weights: equal for equal bits, whatever the device."""
        return digest_of({name: self.weight(name) for name in self.names()})


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, dtypes and bits, in the order of the names."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        state.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        state.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
