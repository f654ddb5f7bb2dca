"""The contract of the PromptSource port: parametrise a test over `CONTRACT`.

@pytest.mark.parametrize("check", CONTRACT)
def test_prompts(check: Check) -> None:
    check(lambda seed: my_source(seed=seed))
"""

from __future__ import annotations

from collections.abc import Callable

from hexpo.application.ports.prompts import Position, PromptSource
from hexpo.domain.errors import DataError
from hexpo.entrypoints.testing.expecting import expect

Open = Callable[[int], PromptSource]
"""Gives a source that is at its beginning, of the same rows (four or more) each time, shuffled by
this seed."""
Check = Callable[[Open], None]
"""Raises AssertionError where a source breaks the contract."""


def _draw(source: PromptSource, count: int) -> list[str]:
    return [source.draw().id for _ in range(count)]


def an_epoch_has_every_row_once_in_an_order_of_its_own(open_source: Open) -> None:
    """The same seed draws the same for ever; another epoch or seed draws otherwise."""
    source, size = open_source(1), len(open_source(1))
    drawn = _draw(source, 4 * size)
    epochs = [drawn[start : start + size] for start in range(0, 4 * size, size)]
    rows = sorted(row.id for row in source.rows())
    expect(all(sorted(epoch) == rows for epoch in epochs), "an epoch is no permutation of rows")
    expect(len({tuple(epoch) for epoch in epochs}) > 1, "every epoch has the same order")
    expect(_draw(open_source(1), 4 * size) == drawn, "the same seed drew otherwise")
    expect(_draw(open_source(2), 4 * size) != drawn, "another seed drew the same")


def rows_come_once_each_and_draws_change_nothing(open_source: Open) -> None:
    """`rows` is for evaluations and for filters: complete, in one order, at any time."""
    source = open_source(1)
    listed = [row.id for row in source.rows()]
    expect(len(listed) == len(set(listed)) == len(source), "rows are not `len` distinct ids")
    _draw(source, len(source) + 1)
    expect([row.id for row in source.rows()] == listed, "drawing changed what rows gives")
    position = source.position
    expect(len(list(source.rows())) == len(source), "rows gave less")
    expect(source.position == position, "rows moved the position")


def a_position_goes_on_exactly_there(open_source: Open) -> None:
    """What a checkpoint holds: also at an epoch's end, and one row before and after."""
    size = len(open_source(1))
    for drawn in (0, 1, size - 1, size, size + 1, 2 * size):
        source, other = open_source(1), open_source(1)
        _draw(source, drawn)
        place = Position(source.position.epoch, source.position.index)
        other.seek(place)
        expect(other.position == place, f"{place} became {other.position}")
        rest = _draw(source, size + 1)
        expect(_draw(other, size + 1) == rest, f"after {drawn} draws it went on elsewhere")


def identity_is_that_of_rows_and_seed(open_source: Open) -> None:
    """A checkpoint of other rows, or of another order, is refused by it."""
    source = open_source(1)
    identity = source.identity
    _draw(source, 3)
    expect(source.identity == identity == open_source(1).identity, "it changes by itself")
    expect(open_source(2).identity != identity, "another seed has the same identity")


def a_position_outside_the_rows_is_refused(open_source: Open) -> None:
    """One of a longer source is not clamped."""
    source = open_source(1)
    for place in (Position(0, len(source) + 1), Position(0, -1), Position(-1, 0)):
        try:
            source.seek(place)
        except DataError:
            continue
        raise AssertionError(f"{place} was taken, of {len(source)} rows")


CONTRACT: tuple[Check, ...] = (
    an_epoch_has_every_row_once_in_an_order_of_its_own,
    rows_come_once_each_and_draws_change_nothing,
    a_position_goes_on_exactly_there,
    identity_is_that_of_rows_and_seed,
    a_position_outside_the_rows_is_refused,
)
"""Every check."""
