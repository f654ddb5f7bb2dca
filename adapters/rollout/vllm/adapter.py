"""Low-rank adapters beside the base that vLLM holds."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed

NAME, NUMBER = "policy", 1
"""How vLLM calls the adapter."""
PREFIX = "base_model.model."
"""Before every name, as peft's own folders have it."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM makes room for."""


def room_for(rank: int) -> int:
    """The least of vLLM's ranks that is enough; the largest where none is."""
    return next((one for one in RANKS if one >= rank), RANKS[-1])


def collected(
    stream: Iterable[tuple[str, Tensor]], wanted: Collection[str], digester: Digester
) -> dict[str, Tensor]:
    """All factors of an update.

    Args: stream: tensors that stay as they are.
        wanted: names of the update before; empty: this is the first.
    Raises: EngineFailed: none came, whole weights came, or other ones than before (G4).
    """
    found: dict[str, Tensor] = {}
    for name, tensor in stream:
        if not name.startswith(PREFIX) or ".lora_" not in name:
            raise EngineFailed(
                f"{name} is no adapter's weight, and this engine holds its base: set"
                " training.options.sent to adapters, or rollout.options.adapter_rank to 0"
            )
        digester.add(name, tensor)
        found[name] = tensor
    if not found:
        raise EngineFailed("an update without any adapter's weights: no layer has one")
    if wanted and (differing := sorted(found.keys() ^ set(wanted))):
        raise EngineFailed(
            f"{len(differing)} adapter weights came now or before, not both:"
            f" {', '.join(differing[:3])}"
        )
    return found


def write_folder(folder: Path, weights: Mapping[str, Tensor], *, alpha: float) -> None:
    """An adapter's folder as peft makes it, for vLLM to read.

    Raises: EngineFailed: the factors do not have one rank.
    """
    from safetensors.torch import save_file

    ranks = {tensor.shape[0] for name, tensor in weights.items() if ".lora_A." in name}
    if len(ranks) != 1:
        raise EngineFailed(f"the adapters have the ranks {sorted(ranks)}; vLLM takes one")
    targets = {name.split(".lora_")[0].rpartition(".")[2] for name in weights}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "target_modules": sorted(targets),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(dict(weights), folder / "adapter_model.safetensors", metadata={"format": "pt"})
