"""Inside vLLM's workers: weights come in, all of them, and what was packed is packed again.

vLLM finds the class by its name and mixes it into its worker; it imports vLLM only when called.
"""

from __future__ import annotations

import importlib
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hexpo.adapters.models import checksum
from hexpo.adapters.rollout.vllm.adapter import NAME, NUMBER, collected, write_folder
from hexpo.application.ports.transfer import Receive
from hexpo.domain.digest import Digester
from hexpo.domain.errors import EngineFailed, ModelError

Shapes = Mapping[str, tuple[int, ...]]


class WeightsExtension:
    """Methods that `collective_rpc` calls on every worker; their names are free in vLLM's own."""

    model_runner: Any
    model_config: Any
    rank: int
    _receive: Receive
    _wanted: Shapes
    _alpha: float
    _factors: frozenset[str] = frozenset()
    """Names of the adapters' weights, once some came."""

    def hexpo_connect(self, receiver: str, readers: list[str], alpha: float) -> None:
        """Build this worker's receiver.

        Args: receiver: a module with `build_receiver`. readers: names of all ranks' readers.
            alpha: of adapters that come by themselves; 0: whole weights come.
        """
        self._alpha = alpha
        build = importlib.import_module(receiver).build_receiver
        self._receive = build(reader=readers[self.rank])
        tied = bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))
        self._wanted = wanted_weights(Path(self.model_config.model), is_tied=tied)

    def hexpo_load(self, update: bytes) -> tuple[int, int, str]:
        """Read an update into the model; what was read, as the parts of a Digest."""
        digester = checksum.digester_beside()
        stream = self._receive(pickle.loads(update), keep=True)  # vLLM keeps parts of fused weights
        if self._alpha:
            self._take_adapters(stream, digester)
        else:
            self._take_weights(checked(stream, self._wanted, digester))
        digest = digester.digest
        return digest.tensors, digest.bytes, digest.checksum

    def _take_weights(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        model = self.model_runner.model
        try:
            self.model_runner.reload_weights(weights_iterator=stream)
        except BaseException:
            self._restore(model)
            raise
        repack(model)

    def _take_adapters(self, stream: Iterable[tuple[str, Tensor]], digester: Digester) -> None:
        """vLLM reads adapters from folders alone; this one is gone when it has them."""
        from vllm.lora.request import LoRARequest

        weights = collected(stream, self._factors, digester)
        with tempfile.TemporaryDirectory(prefix="hexpo-adapter-") as folder:
            write_folder(Path(folder), weights, alpha=self._alpha)
            self.model_runner.remove_lora(NUMBER)
            self.model_runner.add_lora(LoRARequest(NAME, NUMBER, folder))
        self._factors = frozenset(weights)

    def _restore(self, model: nn.Module) -> None:
        """End a half reload, so that the next one starts anew."""
        from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload

        finalize_layerwise_reload(model, self.model_config)


def wanted_weights(folder: Path, *, is_tied: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes that every update must bring: those that the engine itself loaded.

    Raises ModelError: the folder has no safetensors, whose headers say so.
    """
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():
                shapes[name] = tuple(opened.get_slice(name).get_shape())
    if not shapes:
        raise ModelError(f"{folder} has no safetensors; export the model in that format")
    if is_tied:
        shapes.pop("lm_head.weight", None)
    return {name: shape for name, shape in shapes.items() if not name.endswith(".inv_freq")}


def checked(
    stream: Iterable[tuple[str, Tensor]], wanted: Shapes, digester: Digester
) -> Iterator[tuple[str, Tensor]]:
    """The stream, each tensor counted.

    Raises EngineFailed: a name that the engine lacks, another shape, or, at the end, names that
        did not come (G4).
    """
    missing = dict(wanted)
    for name, tensor in stream:
        shape = missing.pop(name, None)
        if shape is None:
            raise EngineFailed(f"the engine has no weight {name}, or it came twice")
        if shape != tuple(tensor.shape):
            raise EngineFailed(f"{name} has shape {tuple(tensor.shape)}, the engine's has {shape}")
        digester.add(name, tensor)
        yield name, tensor
    if missing:
        some = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise EngineFailed(
            f"{len(missing)} weights of the engine were not sent: {some}; it would go on with"
            " older ones there"
        )


def repack(model: nn.Module) -> list[str]:
    """Pack again what the CPU build multiplies from a packed copy and a reload leaves behind.

    A linear whose weight is read in place by another layer too (the output head of a tied
    embedding) keeps it, and a reload writes that weight but not the copy: log-probs are then off,
    without a word. Returns: names of the layers that were packed.
    """
    packed = [
        (name, layer)
        for name, layer in model.named_modules()
        if hasattr(layer, "cpu_linear") and layer.weight.numel()
    ]
    if packed:
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

        for _, layer in packed:
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    return [name for name, _ in packed]
