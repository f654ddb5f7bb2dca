"""From a file, a mapping and overrides to a checked-by-type configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import yaml

from hexpo.adapters.models.loading import locate
from hexpo.domain.errors import ConfigurationError, HexpoError
from hexpo.infrastructure.config import drawing, layers
from hexpo.infrastructure.config.elsewhere import foreign, without
from hexpo.infrastructure.config.layers import Origin
from hexpo.infrastructure.config.options import complete
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import (
    Problem,
    is_section,
    members,
    plain,
    structure,
)


@attrs.frozen(kw_only=True)
class Resolved:
    """A configuration and where each of its values came from."""

    config: RunConfig
    origins: Mapping[str, Origin]
    """By dotted key; options that nobody named are `default`."""

    def origin(self, key: str) -> Origin:
        """Where the value of a dotted key came from."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return Origin.DEFAULT


def load(source: Path | str | Mapping[str, Any], *, overrides: Sequence[str] = ()) -> Resolved:
    """Resolve a configuration: override > file > model > default.

    Args: source: a YAML file, or its content as a mapping.
        overrides: `section.key=value`, values in YAML; the last one wins.
    Raises: ConfigurationError: all unknown keys, wrong types and values out of range at once.
    """
    user = dict(source) if isinstance(source, Mapping) else layers.read(Path(source))
    given = layers.overrides(overrides)
    model = _model_layer(layers.merge(user, given))
    layered = layers.resolve(
        {
            Origin.DEFAULT: defaults(RunConfig),
            Origin.MODEL: model,
            Origin.FILE: user,
            Origin.OVERRIDE: given,
        }
    )
    removed = foreign([key for key, _ in layers.leaves(layered.values)])
    values, wrong_options = complete(without(layered.values, [p.key for p in removed]))
    options = [key for key, _ in layers.leaves(values) if ".options." in key]
    everywhere = [*keys(RunConfig), *options]
    config, problems = structure(values, RunConfig, elsewhere=everywhere)
    drawn = list(drawing.problems(config)) if config is not None else []
    problems = removed + problems + wrong_options + drawn
    if config is None or problems:
        raise refuse(problems)
    return Resolved(config=config, origins=layered.origins)


def refuse(problems: Sequence[Problem]) -> ConfigurationError:
    """One error that lists everything (M3)."""
    lines = "\n".join(f"  - {problem}" for problem in dict.fromkeys(problems))
    count = len(dict.fromkeys(problems))
    noun = "thing is" if count == 1 else "things are"
    return ConfigurationError(f"{count} {noun} wrong with the configuration:\n{lines}")


def defaults(of: type[Any]) -> dict[str, Any]:
    """The schema's defaults as a plain mapping; keys without one are left out."""
    found: dict[str, Any] = {}
    for field in attrs.fields(attrs.resolve_types(of)):
        made = field.default
        if isinstance(made, attrs.Factory):  # type: ignore[arg-type]
            found[field.name] = made.factory()
        elif made is not attrs.NOTHING:
            found[field.name] = plain(made)
        elif is_section(field.type):
            found[field.name] = defaults(field.type)
    return found


def keys(of: type[Any], *, prefix: str = "") -> list[str]:
    """Dotted names of all first-class keys: lists of sections count once, options as one key."""
    found = []
    for field in attrs.fields(attrs.resolve_types(of)):
        sections = [kind for kind in members(field.type) if is_section(kind)]
        if sections:
            found += keys(sections[0], prefix=f"{prefix}{field.name}.")
        else:
            found.append(f"{prefix}{field.name}")
    return found


def write(config: RunConfig, path: Path) -> None:
    """Write a configuration as YAML that `load` reads back to an equal one."""
    text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")


def _model_layer(user: Mapping[str, Any]) -> dict[str, Any]:
    """What the model's folder says: the precision that its weights are stored in."""
    section = user.get("model")
    path = section.get("path") if isinstance(section, Mapping) else None
    if not isinstance(path, str):
        return {}
    try:
        file = locate(path).folder / "config.json"
        described = json.loads(file.read_text(encoding="utf-8"))
    except (HexpoError, OSError, ValueError):  # the model check reports it with its cause
        return {}
    stored = str(described.get("dtype") or described.get("torch_dtype") or "")
    precision = {"float32": "fp32", "bfloat16": "bf16"}.get(stored.removeprefix("torch."))
    return {"model": {"precision": precision}} if precision else {}
