"""The far side of a call: an entry makes a service, and its methods are called by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from hexpo.adapters.cluster.wire.codec import Part, decode, encode
from hexpo.adapters.cluster.wire.failures import failure
from hexpo.application.ports.cluster import Context
from hexpo.domain.errors import EngineFailed, WrongValue


async def compose(entry: str, value: Any, context: Context) -> Any:
    """Call an entry, `module:function`. Raises WrongValue: it is not there; whatever it raises."""
    module, _, name = entry.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (AttributeError, ValueError) as error:
        raise WrongValue(f"entry {entry!r} is not there; write `module:function`") from error
    made = function(value, context)
    return await made if inspect.isawaitable(made) else made


async def invoke(service: Any, method: str, arguments: Sequence[Any], options: Any) -> Any:
    """Call a method of a service. Raises WrongValue: it has no such public method."""
    if method.startswith("_") or not callable(getattr(service, method, None)):
        there = ", ".join(name for name in dir(service) if not name.startswith("_"))
        raise WrongValue(f"{type(service).__name__} has no method {method!r}; it has {there}")
    made = getattr(service, method)(*arguments, **options)
    return await made if inspect.isawaitable(made) else made


async def answer(service: Any, parts: Sequence[Part]) -> tuple[bool, list[Part]]:
    """Answer an encoded call `(method, arguments, options)`: whether it returned, and what.

    Cancellation: the call's.
    """
    try:
        method, arguments, options = decode(parts)
        return True, encode(await invoke(service, method, arguments, options))
    except Exception as error:  # noqa: BLE001  the caller gets it, with its traceback
        return False, encode(failure(error))


async def close(service: Any) -> None:
    """Close a service that can be closed."""
    ending = getattr(service, "close", None)
    if callable(ending):
        made = ending()
        if inspect.isawaitable(made):
            await made


def dead(name: str, cause: str) -> EngineFailed:
    """What a call to a process that is gone raises."""
    return EngineFailed(f"process {name!r} is gone: {cause}")
