"""A model's weights from a folder, where each rank reads its own part and no rank holds it whole.

The module is made without memory, cut up, and only then filled from the safetensors files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from hexpo.adapters.models.loading import load_config, locate
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.models.spec import spec_of
from hexpo.adapters.training.fsdp.places import Place

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


@attrs.frozen(eq=False)
class Source:
    """Where weights are read, by name."""

    folder: Path
    files: dict[str, str]
    """The file of each weight."""
    precision: Precision
    """Weights are rounded to it, as if they had been loaded whole."""
    device: str

    def read(self, name: str, place: Place, to: Tensor) -> None:
        """Fill a rank's part of a weight; with zeros, where the folder has none (a new head)."""
        from safetensors import safe_open

        file = self.files.get(name)
        if file is None:
            to.zero_()
            return
        with safe_open(str(self.folder / file), framework="pt") as opened:
            part: Tensor = opened.get_slice(name)[place]
        to.copy_(part.to(self.precision.dtype))


def empty_policy(
    reference: str, *, precision: Precision, device: str
) -> tuple[Policy, Source] | None:
    """A module without memory, and where its weights are; None where it has to be loaded whole:
    another format, a family without a fast forward, or weights under other names."""
    location = locate(reference)
    if location.gguf:
        return None
    config = load_config(reference)
    files = _files(location.folder)
    if spec_of(config) is None or hasattr(config, "quantization_config") or not files:
        return None
    from transformers import AutoModelForCausalLM, GenerationConfig

    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        module: Any = make(config, dtype=precision.dtype)
    if any(name not in files for name, _ in module.named_parameters()):
        return None
    if (location.folder / "generation_config.json").is_file():
        module.generation_config = GenerationConfig.from_pretrained(str(location.folder))
    module.eval()
    source = Source(location.folder, files, precision, device)
    return Policy(module, precision=precision), source


def _files(folder: Path) -> dict[str, str]:
    from safetensors import safe_open

    if (folder / _INDEX).is_file():
        index: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        return index
    if not (folder / _SINGLE).is_file():
        return {}
    with safe_open(str(folder / _SINGLE), framework="pt") as file:
        return dict.fromkeys(file.keys(), _SINGLE)


def fill(policy: Policy, parts: dict[str, Place], source: Source) -> None:
    """Give a sharded module memory, and this rank's part of every weight. Tied ones stay tied.

    Args: parts: which part of each weight lies here.
    """
    from torch.distributed.tensor import DTensor

    piece: Any = DTensor
    root: Any = policy.module
    made: dict[int, tuple[Any, torch.nn.Parameter]] = {}
    for prefix, module in root.named_modules():
        for name, empty in list(module.named_parameters(prefix, recurse=False)):
            if id(empty) not in made:
                local = torch.empty_like(empty._local_tensor, device=source.device)
                source.read(name, parts[name], local)
                filled = piece(local, empty._spec, requires_grad=False)
                own = torch.nn.Parameter(filled, requires_grad=empty.requires_grad)
                made[id(empty)] = (empty, own)
            setattr(module, name.rpartition(".")[2], made[id(empty)][1])
    root.load_state_dict({}, strict=False)  # FSDP2 takes notice of the new tensors
    rotary: Any = root.base_model.rotary_emb
    root.base_model.rotary_emb = type(rotary)(config=policy.config).to(source.device)
