"""What a checkpoint of a use case holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hexpo.application.checkpointing import CONVERTER, FORMAT, LOOP, Progress
from hexpo.application.fit_progress import CONVERTER as FIT_CONVERTER
from hexpo.application.fit_progress import FitProgress
from hexpo.application.ports.prompts import Position
from hexpo.application.progress import read_progress, write_progress
from hexpo.domain.errors import CheckpointError
from hexpo.domain.schedule import admit, open_gate, plan


@pytest.mark.parametrize("alive", [0, 3, 20_000])
def test_any_number_of_groups_in_flight_is_saved_and_read_again(alive: int, tmp_path: Path) -> None:
    """H2: a bit a group makes a number that Python writes in no decimal digits."""
    gate = open_gate(plan(groups=10_000, max_staleness=1.0))
    for _ in range(alive):
        gate, _ = admit(gate)
    progress = Progress(
        step=0, version=0, gate=gate, in_flight=(), source="rows", position=Position()
    )
    write_progress(tmp_path / LOOP, progress, converter=CONVERTER)
    assert read_progress(tmp_path / LOOP, Progress, known=FORMAT, converter=CONVERTER) == progress


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: None, "missing or damaged"),
        (lambda text: text[:-3], "missing or damaged"),
        (lambda text: "null", "missing or damaged"),
        (lambda text: "[1]", "missing or damaged"),
        (lambda text: text.replace('"step"', '"stop"'), "missing or damaged"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format 2, .* reads 1"),
    ],
    ids=["absent", "cut", "null", "list", "another field", "another format"],
)
def test_a_part_that_cannot_be_read_is_named(
    spoil: Callable[[str], str | None], said: str, tmp_path: Path
) -> None:
    """H4: whichever way it is spoilt; never a traceback of the reader."""
    file = tmp_path / "fit.json"
    progress = FitProgress(step=3, source="rows", position=Position())
    write_progress(file, progress, converter=FIT_CONVERTER)
    assert read_progress(file, FitProgress, known=1, converter=FIT_CONVERTER) == progress
    spoilt = spoil(file.read_text())
    file.unlink() if spoilt is None else file.write_text(spoilt)
    with pytest.raises(CheckpointError, match=rf"fit\.json (is|has) {said}"):
        read_progress(file, FitProgress, known=1, converter=FIT_CONVERTER)
