"""Model folders that others load: Hugging Face's layout, safetensors, no quantisation left."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hexpo.adapters.models.lora import ADAPTER, Lora
from hexpo.adapters.models.policy import Policy

_SHARD = "5GB"


def export_policy(policy: Policy, folder: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write weights, configuration and generation defaults, low-rank adapters merged in.

    `AutoModelForCausalLM.from_pretrained(folder)` gives the same logits (H7).

    Args: folder: made if missing.
        dtype: of the weights; by default that of the policy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dtype = dtype or policy.precision.dtype
    config = copy.deepcopy(policy.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = dtype
    config.architectures = [type(policy.module).__name__]
    config.save_pretrained(folder)
    generation = getattr(policy.module, "generation_config", None)
    if generation is not None:
        generation.save_pretrained(folder)
    weights = {name: tensor.to(dtype) for name, tensor in policy.named_weights()}
    _write(weights, folder)


def _write(weights: dict[str, Tensor], folder: Path) -> None:
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(weights, max_shard_size=_SHARD)
    for file, names in split.filename_to_tensors.items():
        shard = {name: weights[name].contiguous() for name in names}
        save_file(shard, folder / file, metadata={"format": "pt"})
    # What an earlier export left would be read in the place of these, or beside them.
    for stale in folder.glob("model*.safetensors*"):
        if stale.name not in split.filename_to_tensors:
            stale.unlink()
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def export_adapter(policy: Policy, folder: Path, *, lora: Lora, base: str) -> None:
    """Write the adapters alone, as a folder that peft's `PeftModel.from_pretrained` loads.

    Args: lora: the settings that they were attached with.
        base: where the base model is found; goes into the adapter's configuration.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    ).save_pretrained(str(folder))
    weights: dict[str, Any] = {
        f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": parameter.detach().contiguous()
        for name, parameter in policy.module.named_parameters()
        if ".lora_" in name
    }
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
