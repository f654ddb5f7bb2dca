"""Fills a question's template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexpo.domain.errors import ConfigurationError


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with `{name}` replaced by values; `{{` and `}}` are plain braces.

    Raises: ConfigurationError: it names something that `values` lacks, or its braces don't match.
    """
    try:
        return template.format_map(values)
    except KeyError as error:
        raise ConfigurationError(
            f"template {template!r} names {error.args[0]!r}; it may name "
            f"{', '.join(sorted(values))}, and a plain brace is written twice"
        ) from error
    except (ValueError, IndexError, AttributeError) as error:
        raise ConfigurationError(
            f"template {template!r} can't be filled: {error}; a plain brace is written twice"
        ) from error
