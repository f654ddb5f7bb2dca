"""One rank's share of every call, in its own process: fetch rows, split them, compute, write.

All ranks run the same number of micro-batches: they agree on the largest number that one needs,
and on whether all could fetch their rows, before the first collective of a model (O4).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import attrs
import torch
from torch import Tensor

from hexpo.adapters.training.backend import Added, Backend, Gradient, Part, Progress
from hexpo.adapters.training.host.order import Order, opened
from hexpo.adapters.training.wire import by_row, columns_of, joined, part_of, split_rows
from hexpo.application.disk import on_disk
from hexpo.application.ports.store import RowStore
from hexpo.application.ports.transfer import Digest, Send, Update
from hexpo.domain.aggregate import Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.errors import HexpoError, IllegalTransition, Unsupported, WrongBatch
from hexpo.domain.estimators import Estimator
from hexpo.domain.metrics import Metrics, merge
from hexpo.domain.objective import Objective

_T = TypeVar("_T")


class Group(Protocol):
    """All ranks, for a few numbers at a time."""

    @property
    def rank(self) -> int: ...

    def largest(self, *values: int) -> tuple[int, ...]:
        """Together: of each value the largest that a rank gave."""
        ...


@attrs.frozen(eq=False)
class _Share:
    """A rank's micro-batches, and how many all ranks run."""

    rows: Sequences
    places: list[list[int]]
    parts: list[Part]
    count: int

    def part(self, number: int) -> Part | None:
        return self.parts[number] if number < len(self.parts) else None


class Worker:
    """One rank. Every call blocks. Calls that give None say that another rank refused."""

    def __init__(
        self, backend: Backend, group: Group, store: RowStore, *, send: Send | None = None
    ) -> None:
        self._backend, self._group, self._store, self._send = backend, group, store, send
        self._abilities = backend.abilities
        self._number, place = divmod(group.rank, self._abilities.team)
        self._speaks = place == 0  # for its team
        self._taken: Callable[[Path], dict[str, int]] | None = None

    def _agreed(self, make: Callable[[], _T], count: Callable[[_T], int]) -> tuple[_T, int] | None:
        """What `make` gives here, and the largest count; None if another rank refused.

        Raises: HexpoError: this rank refuses; nothing has been computed.
        """
        try:
            made = make()
        except HexpoError:
            self._group.largest(0, 1)
            raise
        most, refused = self._group.largest(count(made), 0)
        return None if refused else (made, most)

    def _share(
        self, order: Order, names: frozenset[str], masks: tuple[str, ...], *, keep_groups: bool
    ) -> _Share | None:
        def make() -> tuple[list[list[int]], list[Part], Sequences]:
            rows = order.of(self._number)
            places = split_rows(
                rows,
                budget=self._abilities.micro_tokens,
                share_prompts=self._abilities.packs,
                keep_groups=keep_groups,
            )
            parts = [part_of(self._store, rows.select(each), names) for each in places]
            for part in parts:
                part.rows(torch.stack([part.columns[mask] for mask in masks]).any(0))
            return places, parts, rows

        found = self._agreed(make, lambda made: len(made[1]))
        if found is None:
            return None
        (places, parts, rows), count = found
        return _Share(rows, places, parts, count)

    def accumulate(self, packed: bytes, applied: int, first: int) -> tuple[Added, int] | None:
        """Add this rank's gradients. Args: applied: optimizer steps so far. first: number of the
        step's next micro-batch. Gives the number of micro-batches, too."""
        order = opened(packed)
        objective: Objective = order.what
        pairs = any(term.loss.unit is Unit.PAIR for term in objective.terms)
        masks = tuple(term.mask for term in objective.terms)
        share = self._share(order, objective.token_columns, masks, keep_groups=pairs)
        if share is None:
            return None
        found = [
            self._backend.accumulate(
                share.part(number),
                objective,
                draw=(applied, first + number),
                last=number == share.count - 1,
            )
            for number in range(share.count)
        ]
        spoilt = tuple(row for added in found for row in added.spoilt)
        metrics = merge(added.metrics for added in found)
        return Added(metrics, sum(added.tokens for added in found), spoilt), share.count

    def score(self, packed: bytes, reference: bool) -> bool | None:  # noqa: FBT001  a message
        """Write columns of this rank's rows, as `{column of the store: column of the backend}`."""
        order = opened(packed)
        columns: dict[str, str] = order.what
        share = self._share(order, frozenset({"action"}), ("action",), keep_groups=False)
        if share is None:
            return None
        pieces: list[dict[str, Tensor]] = [{}] * len(share.rows)
        asked = set(columns.values())
        for number in range(share.count):
            part = share.part(number)
            found = self._backend.score(part, asked, reference=reference)
            if part is not None:
                own = by_row(found, part.sequences)
                for place, piece in zip(share.places[number], own, strict=True):
                    pieces[place] = piece
        whole = joined(pieces, asked)
        made = {name: whole[source] for name, source in columns.items()}

        def write() -> None:
            if self._speaks:
                self._store.extend(share.rows.ids, made)

        written = self._agreed(write, lambda _: 0)
        return None if written is None else True

    def compute(self, packed: bytes) -> None:
        """Run a token estimator over all rows, here alone, and write its columns."""
        order = opened(packed)
        rows, estimator = order.of(self._number), order.what
        columns = columns_of(self._store, rows, frozenset(estimator.needs.tokens) - {"owner"})
        columns["owner"] = torch.repeat_interleave(rows.lengths)
        self._store.extend(rows.ids, _estimated(estimator, columns, rows))

    def finish(self, applied: int) -> tuple[Gradient, Metrics | None]:
        """Apply what was accumulated if it is finite on all ranks, else forget it."""
        gradient = self._backend.gradient()
        if not torch.tensor(gradient.norm).isfinite():
            self._backend.forget()
            return gradient, None
        return gradient, self._backend.apply(gradient, applied=applied)

    def forget(self) -> None:
        """Gradients back to zero."""
        self._backend.forget()

    def save(self, folder: str) -> dict[str, int]:
        """This rank's part; gives its files and their bytes. Raises CheckpointError: no room."""
        with on_disk(Path(folder)):
            return self._backend.save(Path(folder))

    def snapshot(self) -> None:
        """Take this rank's part as it is now, for `write`."""
        self._taken = self._backend.snapshot()

    def write(self, folder: str) -> dict[str, int]:
        """Write what was taken; in a thread of its own. Gives its files and their bytes."""
        if self._taken is None:
            raise IllegalTransition("nothing was taken to be written: call snapshot first")
        taken, self._taken = self._taken, None
        with on_disk(Path(folder)):
            return taken(Path(folder))

    def load(self, folder: str, progress: Progress) -> bool | None:
        """This rank's part. None: another rank could not."""
        loaded = self._agreed(lambda: self._backend.load(Path(folder), progress), lambda _: 0)
        return None if loaded is None else True

    def export(self, folder: str) -> None:
        """A Hugging Face folder, written by rank 0."""
        with on_disk(Path(folder)):
            self._backend.export(Path(folder))

    def base_digest(self) -> str:
        """A hash of what is not trained."""
        return self._backend.base_digest()

    def send(self, update: Update) -> Digest | None:
        """Rank 0 sends; the others gather with it, to the end also where the sender fails."""
        stream = self._backend.weights()
        try:
            if self._group.rank == 0:
                if self._send is None:
                    raise Unsupported("the training ranks were started without a sender")
                return self._send(stream, update)
            return None
        finally:
            for _ in stream:
                pass

    def offload(self) -> None:
        """The device's memory back. Raises Unsupported: host memory is all there is."""
        if self._abilities.device == "cpu":
            raise Unsupported("training on a CPU cannot offload: host memory is all there is")
        self._backend.offload()

    def onload(self) -> None:
        """Undo `offload`."""
        self._backend.onload()

    def close(self) -> None:
        """Free everything."""
        self._backend.close()


def _estimated(
    estimator: Estimator, columns: dict[str, Tensor], rows: Sequences
) -> dict[str, Tensor]:
    needs = estimator.needs
    arguments = {f"{name}_T": columns[name] for name in needs.tokens}
    arguments |= {f"{name}_S": rows[name] for name in needs.sequences}
    made = estimator.function(**arguments, **estimator.options)
    if isinstance(made, Tensor):
        name = getattr(estimator.function, "__qualname__", None) or repr(estimator.function)
        raise WrongBatch(
            f"{name} gives one number a row: it is an outcome estimator and runs on the driver"
        )
    return dict(made)
