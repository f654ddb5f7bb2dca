"""Errors cross processes and can be caught by one root."""

from __future__ import annotations

import inspect
import pickle

import pytest

from hexpo.domain import errors
from hexpo.domain.errors import HexpoError

ERRORS = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, Exception) and each.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickle_with_message_and_cause(kind: type[HexpoError]) -> None:
    """F5: it reaches the driver as it was raised; notes are kept."""
    error = kind("row 7 of rank 3: do this")
    error.add_note("seen on rank 3")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == "row 7 of rank 3: do this"
    assert back.__notes__ == ["seen on rank 3"]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_one_root_and_says_what_it_means(kind: type[HexpoError]) -> None:
    """STYLE: one hierarchy."""
    assert issubclass(kind, HexpoError)
    assert kind.__doc__


def test_the_list_of_errors_is_not_empty() -> None:
    """The two tests above can fail."""
    assert len(ERRORS) >= 10
