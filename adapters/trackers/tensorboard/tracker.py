"""Scalars, and a few answers as text, for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hexpo.adapters.trackers.wire import Quiet
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.errors import MissingExtra
from hexpo.domain.metrics import Metrics, values

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    Open = type[SummaryWriter]


@attrs.frozen(kw_only=True)
class Config:
    """What TensorBoard gets."""

    folder: str = "tensorboard"
    """Folder of the event files, inside the run's folder."""
    answers: int = attrs.field(default=2, validator=attrs.validators.ge(0))
    """How many answers of each report are shown as text."""


class TensorBoard:
    """Writes event files; a resumed run hides what was written about later steps."""

    def __init__(self, config: Config, folder: Path, open_writer: Open) -> None:
        self._config = config
        self._open_writer = open_writer
        self._folder = folder / config.folder
        self._writer: SummaryWriter | None = None

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        self.close()
        self._writer = self._open(purge_step=first_step + 1 if first_step else 0)
        self._writer.add_text("run", title, first_step)

    def report(self, step: int, metrics: Metrics) -> None:
        writer = self._opened()
        for name, value in values(metrics).items():
            writer.add_scalar(name, value, step)

    def samples(self, samples: Sequence[Sample]) -> None:
        writer = self._opened()
        for place, sample in enumerate(samples[: self._config.answers]):
            score = sample.failure if sample.score is None else f"{sample.score:g}"
            text = f"**{sample.prompt}**\n\n{sample.answer}\n\n({score}, {sample.stop})"
            sound = text.encode(errors="backslashreplace").decode()  # no half surrogate pairs
            writer.add_text(f"{sample.phase}/answer {place + 1}", sound, sample.step)

    def progress(self, done: int, wanted: int, what: str) -> None:
        pass

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> SummaryWriter:
        if self._writer is None:
            self._writer = self._open(purge_step=None)
        return self._writer

    def _open(self, *, purge_step: int | None) -> SummaryWriter:
        return self._open_writer(str(self._folder), purge_step=purge_step, flush_secs=10)


def build(config: Config, *, folder: Path, console: object = None) -> Tracker:
    """A tracker that writes into `folder`. Raises: MissingExtra: TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "trackers/tensorboard needs tensorboard: pip install 'hexpo[trackers]'"
        ) from error
    return Quiet(TensorBoard(config, folder, SummaryWriter), name="tensorboard")
