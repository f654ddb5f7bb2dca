"""Leaves out prompts that are solved too often or too rarely, by their running pass rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from hexpo.application.ports.prompts import Position, PromptSource
from hexpo.domain.metrics import Metrics, mean_of, total
from hexpo.domain.seeds import seed_for
from hexpo.domain.shaping.curriculum import PassRates, in_band
from hexpo.domain.trajectory import Group, Prompt, Scored


@attrs.frozen(kw_only=True)
class Band:
    """Which prompts are asked again."""

    hardest: float = 0.0
    """A prompt whose pass rate is below is left out."""
    easiest: float = 1.0
    """A prompt whose pass rate is above is left out."""
    passed: float = 1.0
    """Score from which an answer has passed."""
    decay: float = 0.7
    """How much of a prompt's rate stays when it is asked again."""
    revisit: float = 0.05
    """Share of the epochs in which a prompt is asked although it is out of the band."""
    seed: int = 0


class Curriculum:
    """A `PromptSource` that passes over some rows of another; it owns that one from now on.

    A position always stands right before a row that will be given, so that a prompt that was in
    flight is found again whatever its rate has become. Where a whole round of rows is out of the
    band, the next one is given all the same.
    """

    def __init__(self, source: PromptSource, band: Band) -> None:
        self._source, self._band = source, band
        self._rates = PassRates(decay=band.decay)
        self._settled = False
        self._left_out = 0

    @property
    def identity(self) -> str:
        """That of the rows: another band goes on with the same data."""
        return self._source.identity

    @property
    def position(self) -> Position:
        """Right before the next row that is given."""
        if not self._settled:
            self._settle()
        return self._source.position

    @property
    def rates(self) -> Mapping[str, float]:
        """Running pass rates by prompt id: part of a checkpoint."""
        return self._rates.rates

    def restore(self, rates: Mapping[str, float]) -> None:
        """Go on with the rates of a checkpoint."""
        self._rates = attrs.evolve(self._rates, rates=dict(rates))

    def draw(self) -> Prompt:
        """The next row in the band."""
        if not self._settled:
            self._settle()
        self._settled = False
        return self._source.draw()

    def seek(self, position: Position) -> None:
        """Go to a position; the row there is given, in the band or not."""
        self._source.seek(position)
        self._settled = True

    def rows(self) -> Iterator[Prompt]:
        """Every row, once."""
        return self._source.rows()

    def __len__(self) -> int:
        return len(self._source)

    def learn(self, group: Group) -> None:
        """Count the answers of a finished group; unscored ones say nothing."""
        scores = [row.outcome.value for row in group.rows if isinstance(row.outcome, Scored)]
        if scores:
            passed = sum(score >= self._band.passed for score in scores)
            self._rates = self._rates.after({group.ticket.prompt.id: passed / len(scores)})

    def metrics(self) -> Metrics:
        """Rows that were passed over since the last call, and the known rates."""
        left_out, self._left_out = self._left_out, 0
        known = self._rates.rates
        return {
            "curriculum/left_out": total(left_out),
            "curriculum/known": total(len(known)),
            "curriculum/pass_rate": mean_of(sum(known.values()), len(known)),
        }

    def _settle(self) -> None:
        for _ in range(len(self._source)):
            here = self._source.position
            row = self._source.draw()
            if self._is_asked(row, here.epoch):
                self._source.seek(here)
                break
            self._left_out += 1
        self._settled = True

    def _is_asked(self, row: Prompt, epoch: int) -> bool:
        band = self._band
        if in_band([row.id], self._rates, low=band.hardest, high=band.easiest)[0]:
            return True
        return seed_for(band.seed, "revisit", epoch, row.id) < band.revisit * 2**63
