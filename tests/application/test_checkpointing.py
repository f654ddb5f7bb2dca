"""What a checkpoint of the loop holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hexpo.application.checkpointing import _CONVERTER, LOOP, Progress, read_progress
from hexpo.application.ports.prompts import Position
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
    (tmp_path / LOOP).write_text(json.dumps(_CONVERTER.unstructure(progress)))
    assert read_progress(tmp_path) == progress
