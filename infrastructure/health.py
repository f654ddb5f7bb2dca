"""What this machine and this installation can do: the data behind `hexpo doctor`."""

from __future__ import annotations

import importlib
import pkgutil
import platform as system
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import attrs

from hexpo.application.ports.platform import Health
from hexpo.infrastructure.technologies import TECHNOLOGIES, Finding, find


@attrs.frozen(kw_only=True)
class Compiler:
    """The C compiler that builds the native kernels on first use."""

    path: str | None
    """None: there is none, and the kernels' torch twins are used: right, and slower."""
    version: str
    """Its own first line, or what to do."""


@attrs.frozen(kw_only=True)
class Report:
    """Everything that `doctor` shows."""

    python: str
    system: str
    hexpo: str
    torch: str
    """Version and kind of build."""
    platforms: Mapping[str, Health]
    """By the name under which they are chosen."""
    technologies: tuple[Finding, ...]
    compiler: Compiler
    disk_free: int
    """Bytes free where runs are written."""
    memory_total: int
    """Bytes of the machine; 0 where it does not say."""
    memory_available: int
    """Bytes that can be had without swapping; 0 where the machine does not say."""


def examine(*, folder: Path = Path()) -> Report:
    """Look at everything; takes some seconds and starts no engine.

    Args: folder: where runs will be written.
    """
    total, available = _memory()
    return Report(
        python=system.python_version(),
        system=f"{system.system()} {system.release()} {system.machine()}",
        hexpo=metadata.version("hexpo"),
        torch=_torch(),
        platforms=_platforms(),
        technologies=tuple(find(technology) for technology in TECHNOLOGIES),
        compiler=_compiler(),
        disk_free=shutil.disk_usage(folder).free,
        memory_total=total,
        memory_available=available,
    )


def _torch() -> str:
    import torch

    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return f"{torch.__version__} ({kind} build)"


def _platforms() -> dict[str, Health]:
    """Every platform adapter's own probe."""
    from hexpo.adapters import platform

    found = {}
    for module in pkgutil.iter_modules(platform.__path__):
        adapter = importlib.import_module(f"{platform.__name__}.{module.name}")
        found[module.name] = adapter.build(adapter.Config()).health()
    return found


def _compiler() -> Compiler:
    from hexpo.adapters.models.kernels.native import COMPILERS

    for name in COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
        return Compiler(path=path, version=(answer.stdout.splitlines() or [path])[0])
    return Compiler(path=None, version="none found: install gcc or clang for the native kernels")


def _memory(*, description: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Total and available bytes."""
    if not description.is_file():
        return 0, 0
    fields = dict(line.split(":", 1) for line in description.read_text().splitlines())
    total, available = (
        int(fields.get(name, "0").split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
    )
    return total, available
