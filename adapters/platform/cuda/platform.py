"""The CUDA platform; it says why when there is none."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from hexpo.application.ports.platform import Health, Platform
from hexpo.domain.errors import Unsupported


@attrs.frozen(kw_only=True)
class Config:
    """Settings of the CUDA platform; variables that the user has set win over all of them."""

    index: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """Which of the visible devices."""
    tensor_floats: bool = True
    """fp32 products may use the tensor cores' 19-bit floats: several times faster, 1e-3 exact."""
    growing_segments: bool = True
    """The allocator grows its segments instead of adding new ones: ragged steps fragment less."""
    deterministic: bool = False
    """Refuse operations that have no reproducible implementation."""


def _absence(index: int) -> str:
    """Why device `index` can't be used; empty if it can."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch is built for CUDA but finds no device: is a driver installed and one visible?"
    if index >= torch.cuda.device_count():
        return (
            f"device {index} is asked for, {torch.cuda.device_count()} are visible: set "
            "platform.options.index or CUDA_VISIBLE_DEVICES"
        )
    return ""


class CudaPlatform:
    """See `hexpo.application.ports.platform.Platform`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @property
    def device(self) -> str:
        return f"cuda:{self._config.index}"

    @property
    def collective(self) -> str:
        return "nccl"

    def environment(self) -> Mapping[str, str]:
        """Allocator and, if asked for, the workspace that reproducible products need."""
        variables = {}
        if self._config.growing_segments:
            variables["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        if self._config.deterministic:
            variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        return variables

    def _require(self) -> None:
        """Raises: Unsupported: there is no such device; says why."""
        if absence := _absence(self._config.index):
            raise Unsupported(f"platform cuda: {absence}; or choose platform cpu")

    def prepare(self) -> None:
        """Choose the device. Raises: Unsupported: there is none; says why."""
        import torch

        self._require()
        torch.cuda.set_device(self._config.index)
        torch.backends.cuda.matmul.allow_tf32 = self._config.tensor_floats
        if self._config.deterministic:
            torch.use_deterministic_algorithms(mode=True)

    def peak_memory(self) -> int:
        """Bytes that tensors took at most; 0 without a device."""
        import torch

        absent = bool(_absence(self._config.index))
        return 0 if absent else torch.cuda.max_memory_allocated(self._config.index)

    def release(self) -> None:
        """Return cached blocks to the driver; nothing to do without a device."""
        import torch

        if not _absence(self._config.index):
            torch.cuda.empty_cache()

    def health(self) -> Health:
        import torch

        if absence := _absence(self._config.index):
            return Health(available=False, reason=absence)
        properties = torch.cuda.get_device_properties(self._config.index)
        free, total = torch.cuda.mem_get_info(self._config.index)
        facts = {
            "device": properties.name,
            "devices visible": str(torch.cuda.device_count()),
            "memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
            "capability": f"{properties.major}.{properties.minor}",
            "CUDA": str(torch.version.cuda),
            "bf16": "yes" if torch.cuda.is_bf16_supported() else "no",
        }
        return Health(available=True, reason=f"{properties.name} found", facts=facts)


def build(config: Config) -> Platform:
    """A platform that has touched nothing yet."""
    return CudaPlatform(config)
