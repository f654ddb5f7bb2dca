"""Inside an engine's process: reads a version's files, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from hexpo.adapters.transfer.disk.folder import Versions
from hexpo.application.ports.transfer import Receive, Update
from hexpo.domain.errors import EngineFailed


def build_receiver(*, reader: str) -> Receive:
    """A receiver. Args: reader: names it in errors."""

    def receive(update: Update, *, keep: bool = False) -> Iterator[tuple[str, Tensor]]:
        del keep  # what a file was read into is not written again
        from safetensors.torch import load

        versions = Versions.of(update)
        for name in versions.index(update.version)["files"]:
            try:
                content = versions.read(update.version, name)
            except OSError as error:
                raise EngineFailed(
                    f"{reader}: {name} of version {update.version} cannot be read ({error})"
                ) from error
            yield from load(content).items()

    return receive
