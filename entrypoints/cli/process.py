"""The process of a command that computes: restarted once with its platform's variables."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hexpo.application.ports.platform import Platform
from hexpo.domain.errors import HexpoError
from hexpo.infrastructure import find, runs
from hexpo.infrastructure.config import layers
from hexpo.infrastructure.config.structure import structure
from hexpo.infrastructure.process import collect_rarely, quieten, with_environment


def prepare(config: Path | None = None, overrides: Sequence[str] = ()) -> None:
    """Set the process up before torch is loaded: thread runtimes and allocators read their
    variables once. A configuration that cannot be read is reported later, with all its faults;
    without one the default platform is meant."""
    quieten()
    collect_rarely()
    try:
        read = layers.read(config) if config is not None else {}
        platform = _platform(layers.merge(read, layers.overrides(overrides)))
    except HexpoError:
        return
    if platform is not None:
        with_environment(platform)


def log_to(folder: Path) -> None:
    """Keep the library's log in the run's folder too."""
    handler = logging.FileHandler(folder / runs.LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    root = logging.getLogger("hexpo")
    root.setLevel(min(root.getEffectiveLevel(), logging.INFO))
    root.addHandler(handler)


def _platform(values: Mapping[str, Any]) -> Platform | None:
    section = values.get("platform")
    section = section if isinstance(section, Mapping) else {}
    module = find.adapter("platform", str(section.get("kind", "cpu")))
    of = getattr(module, "Config", None)
    if of is None:
        found: Platform = module.build()
        return found
    config, problems = structure(section.get("options") or {}, of)
    return None if problems else module.build(config)
