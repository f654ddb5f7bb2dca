"""Training over ranks: what a backend cannot spread, said before anything starts.

A training adapter that cannot follow all of its settings on any number of ranks says so by a
function `require_ranks(config, *, ranks, model)` beside its `build`; it loads no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hexpo.domain.errors import HexpoError
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import Problem, structure
from hexpo.infrastructure.find import adapter, names


def problems(config: RunConfig) -> Iterator[Problem]:
    """Teams of ranks that the model cannot be cut for, and settings of several ranks on one."""
    training = config.training
    yield from _of(
        "training.options",
        training.backend,
        training.options,
        ranks=training.ranks,
        model=config.model.path,
    )
    for place, other in enumerate(config.models):
        yield from _of(
            f"models[{place}].options",
            other.backend,
            other.options,
            ranks=1,
            model=other.path or config.model.path,
        )


def _of(
    key: str, kind: str, options: Mapping[str, Any], *, ranks: int, model: str
) -> Iterator[Problem]:
    if kind not in names("training") and "." not in kind:
        return  # listed elsewhere
    module = adapter("training", kind)
    require, of = getattr(module, "require_ranks", None), getattr(module, "Config", None)
    settings = None if of is None else structure(options, of)[0]
    if require is None or settings is None:
        return
    try:
        require(settings, ranks=ranks, model=model)
    except HexpoError as error:
        yield Problem(key, str(error))
