"""What a researcher's function needs, read from its signature."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch import Tensor

from hexpo.domain.errors import WrongValue
from hexpo.domain.signature import needs_of


def loss(*, policy_T: Tensor, old_T: Tensor, score_S: Tensor, clip: float = 0.2, mode: Any) -> None:
    """A loss's shape."""


def test_columns_and_options_are_told_apart_by_their_names() -> None:
    """B8: each column is passed by its name."""
    needs = needs_of(loss)
    assert needs.tokens == ("policy", "old")
    assert needs.sequences == ("score",)
    assert needs.options == {"clip": 0.2, "mode": inspect.Parameter.empty}


def test_a_name_is_cut_at_its_axis_only() -> None:
    """`T_T` is the column `T`, and `top` no column at all."""

    def odd(*, T_T: Tensor, S_S: Tensor, top: int = 1) -> None: ...

    needs = needs_of(odd)
    assert (needs.tokens, needs.sequences, list(needs.options)) == (("T",), ("S",), ["top"])


def positional(policy_T: Tensor) -> None: ...


def listed(*policy_T: Tensor) -> None: ...


def anything(**columns_T: Tensor) -> None: ...


@pytest.mark.parametrize("function", [listed, anything])
def test_columns_that_no_signature_names_are_refused_with_the_way_to_name_them(
    function: Any,
) -> None:
    """A `*` before `**columns` would be no Python."""
    with pytest.raises(WrongValue, match="name each one, like score_S or policy_T"):
        needs_of(function)


@pytest.mark.parametrize("function", [positional, listed, anything])
def test_a_function_whose_columns_could_be_swapped_is_refused(function: Any) -> None:
    """Two tensors of one shape, exchanged, would train something else in silence."""
    with pytest.raises(
        WrongValue, match=rf"{function.__name__}: parameter .* must be keyword-only"
    ):
        needs_of(function)
