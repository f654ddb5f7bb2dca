"""From files and overrides to one mapping, and where each value came from. Pure but for `read`.

Precedence: command line > file > model > default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import yaml

from hexpo.domain.errors import ConfigurationError


class Origin(Enum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    """The schema's, or an adapter's own."""
    MODEL = "model"
    """What the model's folder says of itself."""
    FILE = "file"
    """The configuration file, or the mapping that an application gave."""
    OVERRIDE = "override"
    """A `key=value` of the command line or of an application."""


@attrs.frozen
class Layered:
    """Values of all layers together, and the origin of each leaf by its dotted key."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's floats (1e-5 is a number) and without silent duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the library's signature
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise ConfigurationError(
                    f"{key_node.start_mark.name} line {key_node.start_mark.line + 1}:"
                    f" the key {key!r} stands there twice; remove one"
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_FLOAT = re.compile(
    r"""^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?
    |[0-9][0-9_]*\.?(?:[eE][-+]?[0-9]+)
    |[0-9][0-9_]*\.
    |\.(?:inf|Inf|INF)|[-+]\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":float")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(text: str, *, where: str) -> Any:
    """A YAML value. Raises ConfigurationError naming `where` and the line."""
    try:
        loader = _Loader(text)
        loader.name = where
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where} is not valid YAML: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """A configuration file. Raises ConfigurationError: missing, unreadable, not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no configuration file {path}; give a path to a YAML file"
            " (examples lie in the repository's examples/)"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    value = parse(text, where=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} must hold sections with keys, not {type(value).__name__}")
    return value


def overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`a.b=value` arguments as a nested mapping; values are parsed as YAML, the last one wins.

    Raises ConfigurationError: an argument without `=`, an empty part of a key.
    """
    nested: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise ConfigurationError(
                f"override {argument!r} is not of the form key.key=value"
                " (for example training.options.learning_rate=1e-5)"
            )
        value = parse(text, where=f"override {key}")
        for part in reversed(parts):
            value = {part: value}
        nested = merge(nested, value)
    return nested


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings together; `above` wins, and mappings merge key by key."""
    merged = dict(below)
    for key, value in above.items():
        have = merged.get(key)
        both = isinstance(have, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(have, value) if both and have is not None else value
    return merged


def leaves(values: Mapping[str, Any], *, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of everything that is not itself a non-empty mapping."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, prefix=f"{path}.")
        else:
            yield path, value


def resolve(layers: Mapping[Origin, Mapping[str, Any]]) -> Layered:
    """All layers by precedence: a pure function. A leaf's origin is the strongest layer that
    names it."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for origin in Origin:
        layer = layers.get(origin, {})
        values = merge(values, layer)
        origins |= {key: origin for key, _ in leaves(layer)}
    present = dict(leaves(values))
    return Layered(values, {key: origins[key] for key in present if key in origins})
