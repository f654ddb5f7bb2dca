"""The contract of the RowStore port: parametrise a test over `CONTRACT`, call each with a factory.

@pytest.mark.parametrize("check", CONTRACT)
def test_row_store(check: Check) -> None:
    check(lambda: my_store())
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.testing import assert_close

from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.entrypoints.testing.expecting import expect

Open = Callable[[], RowStore]
"""Gives a new, empty store of the default schema."""
Check = Callable[[Open], None]
"""Raises AssertionError where a store breaks the contract."""


def _batch(ids: list[int], lengths: list[int], *, first: int = 0) -> Batch:
    count = sum(lengths)
    table = {"id": torch.tensor(ids, dtype=torch.int64), "length": torch.tensor(lengths).long()}
    return Batch.of(
        Sequences.of(table),
        {"token": torch.arange(first, first + count), "reward": torch.zeros(count)},
    )


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def _tokens(store: RowStore, *ids: int) -> list[int]:
    column = store.get(_ids(*ids), ["token"])["token"]
    return [int(token) for token in column]


def _expect_refusal(call: Callable[[], object], *named: str) -> None:
    try:
        call()
    except WrongBatch as error:
        missing = [name for name in named if name not in str(error)]
        expect(not missing, f"the message {error} does not name {missing}")
    else:
        raise AssertionError("WrongBatch was expected")


def rows_come_back_in_the_order_asked(open_store: Open) -> None:
    """Any order, over several batches, one copy a row that is asked for twice."""
    store = open_store()
    store.put(_batch([7, 3], [2, 3]))
    store.put(_batch([5], [1], first=100))
    expect(_tokens(store, 5, 3, 7, 5) == [100, 2, 3, 4, 0, 1, 100], "wrong tokens or order")


def no_row_and_a_row_without_tokens_are_ordinary(open_store: Open) -> None:
    """An empty answer keeps dtype and has zero tokens."""
    store = open_store()
    store.put(_batch([], []))
    store.put(_batch([1], [0]))
    for ids in (_ids(), _ids(1)):
        found = store.get(ids, ["token", "reward"])
        expect(found.shape[0] == 0 and found["token"].dtype is torch.int64, "not empty int64")
    store.extend(_ids(), {"value": torch.zeros(0)})


def a_later_column_joins_the_rows(open_store: Open) -> None:
    """`extend` takes tokens in the order of its own ids, part by part."""
    store = open_store()
    store.put(_batch([1, 2, 3], [2, 1, 2]))
    store.extend(_ids(3, 1), {"value": torch.tensor([30.0, 31.0, 10.0, 11.0])})
    store.extend(_ids(2), {"value": torch.tensor([20.0])})
    found = store.get(_ids(1, 2, 3), ["value", "token"])
    assert_close(found["value"], torch.tensor([10.0, 11.0, 20.0, 30.0, 31.0]))
    assert_close(found["token"], torch.arange(5))


def a_column_is_written_once_and_whole(open_store: Open) -> None:
    """A refused call writes nothing."""
    store = open_store()
    store.put(_batch([1, 2], [1, 1]))
    store.extend(_ids(2), {"value": torch.zeros(1)})
    _expect_refusal(lambda: store.extend(_ids(1, 2), {"value": torch.ones(2)}), "2", "value")
    _expect_refusal(lambda: store.get(_ids(1), ["value"]), "1", "value")
    _expect_refusal(lambda: store.extend(_ids(1, 1), {"old": torch.ones(2)}), "1")
    _expect_refusal(lambda: store.put(_batch([2, 3], [1, 1])), "2")
    _expect_refusal(lambda: store.get(_ids(3), ["token"]), "3")


def misfits_are_refused_by_name(open_store: Open) -> None:
    """Unknown rows, missing and undeclared columns, wrong sizes and dtypes."""
    store = open_store()
    store.put(_batch([1], [2]))
    _expect_refusal(lambda: store.get(_ids(1, 99), ["token"]), "99")
    _expect_refusal(lambda: store.drop(_ids(98)), "98")
    _expect_refusal(lambda: store.get(_ids(1), ["reference"]), "reference")
    _expect_refusal(lambda: store.get(_ids(1), ["no_such_column"]), "no_such_column")
    _expect_refusal(lambda: store.extend(_ids(1), {"value": torch.zeros(3)}), "value")
    wrong = torch.zeros(2, dtype=torch.float64)
    _expect_refusal(lambda: store.extend(_ids(1), {"value": wrong}), "value", "float64")


def dropped_rows_are_gone_and_their_ids_free(open_store: Open) -> None:
    """A row is valid until it is dropped; the others stay."""
    store = open_store()
    store.put(_batch([1, 2], [1, 2]))
    store.drop(_ids(1))
    _expect_refusal(lambda: store.get(_ids(1), ["token"]), "1")
    expect(_tokens(store, 2) == [1, 2], "another row was lost")
    store.put(_batch([1], [1], first=50))
    expect(_tokens(store, 1) == [50], "a freed id gave old tokens")


def answers_may_be_written(open_store: Open) -> None:
    """What `get` gave is the caller's own, and carries no gradient into the store."""
    store = open_store()
    store.put(_batch([1], [2]))
    store.extend(_ids(1), {"value": torch.ones(2, requires_grad=True)})
    found = store.get(_ids(1), ["token", "value"])
    found["token"].fill_(9)
    expect(_tokens(store, 1) == [0, 1], "a caller's write reached the store")
    expect(not found["value"].requires_grad, "a stored column carries a gradient")


CONTRACT: tuple[Check, ...] = (
    rows_come_back_in_the_order_asked,
    no_row_and_a_row_without_tokens_are_ordinary,
    a_later_column_joins_the_rows,
    a_column_is_written_once_and_whole,
    misfits_are_refused_by_name,
    dropped_rows_are_gone_and_their_ids_free,
    answers_may_be_written,
)
"""Every promise of the port."""
