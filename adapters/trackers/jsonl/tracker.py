"""Numbers and samples as lines of JSON: the record that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from hexpo.adapters.trackers.jsonl.lines import StepLines
from hexpo.adapters.trackers.wire import Quiet
from hexpo.application.ports.tracker import Sample, Tracker
from hexpo.domain.metrics import Metrics, values


@attrs.frozen(kw_only=True)
class Config:
    """What is written into the run's folder."""

    samples: bool = True
    """Write `samples.jsonl` too: text, ids, log-probs, versions, score and end of each answer, so
    that it can be looked at and replayed."""
    token_details: bool = True
    """Keep ids, log-probs and versions in the samples; without them a file is ten times smaller."""


_DETAILS = ("tokens", "logprobs", "versions")


class JsonLines:
    """Writes each report at once; a step's second report (an evaluation) joins its line.

    A resumed run goes on where it was: what an earlier process wrote about later steps is cut
    off, and a sample of the resumed step that is there already is not written twice.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        self._config = config
        self._metrics = StepLines(folder / "metrics.jsonl")
        self._samples = StepLines(folder / "samples.jsonl")
        self._row: dict[str, Any] | None = None
        self._known: set[tuple[object, ...]] = set()

    def begin(self, *, title: str, steps: int, first_step: int) -> None:
        # A fresh run keeps nothing, not even the evaluation before its first step.
        last = first_step if first_step > 0 else -1
        lines = self._metrics.open_up_to(last)
        self._row = lines[-1] if lines else None
        if self._config.samples:
            rows = self._samples.open_up_to(last)
            self._known = {(row["step"], row.get("phase"), row.get("id")) for row in rows}

    def report(self, step: int, metrics: Metrics) -> None:
        numbers = values(metrics)
        if self._row is not None and self._row["step"] == step:
            self._row |= numbers
            self._metrics.replace(self._row)
        else:
            self._row = {"step": step, **numbers}
            self._metrics.append(self._row)

    def samples(self, samples: Sequence[Sample]) -> None:
        if not self._config.samples:
            return
        for sample in samples:
            if (sample.step, sample.phase, sample.id) in self._known:
                continue
            row = attrs.asdict(sample, recurse=False)
            if not self._config.token_details:
                row = {name: value for name, value in row.items() if name not in _DETAILS}
            self._samples.append(row)

    def progress(self, done: int, wanted: int, what: str) -> None:
        pass

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()


def build(config: Config, *, folder: Path, console: object = None) -> Tracker:
    """A tracker that writes into `folder`; files are opened when the run begins."""
    return Quiet(JsonLines(config, folder), name="jsonl")
