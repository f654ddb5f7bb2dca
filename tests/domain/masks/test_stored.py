"""Masks and choices of stored columns over a whole optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.masks.covariance import drawn_covariance, top_covariance
from hexpo.domain.masks.entropy import top_entropy
from hexpo.domain.masks.stored import Covariant, Mask, Narrowing
from hexpo.domain.signature import needs_of

TRAINED = torch.tensor([False, True, True, True, False, True])


def below(*, old_T: Tensor, bound: float) -> Tensor:
    """Tokens under a bound."""
    return old_T < bound


def test_a_mask_sees_what_those_before_it_left() -> None:
    """A2: the quantile of the second mask is over the tokens that the first one kept."""
    masks = (
        Mask(function=below, options={"bound": 5.0}),
        Mask(function=top_entropy, options={"share": 0.5}),
    )
    narrowing = Narrowing(masks=masks)
    assert set(needs_of(narrowing).tokens) == {"trained", "old", "entropy"}
    kept = narrowing(
        trained_T=TRAINED,
        old_T=torch.tensor([0.0, 9.0, 1.0, 2.0, 0.0, 3.0]),
        entropy_T=torch.tensor([9.0, 9.0, 1.0, 2.0, 9.0, 3.0]),
    )["kept"]
    assert kept.tolist() == [False, False, False, True, False, True]


def test_no_mask_of_nothing_is_an_empty_mask() -> None:
    """A4: a step without a trained token."""
    nothing = torch.zeros(2, dtype=torch.bool)
    narrowing = Narrowing(masks=(Mask(function=top_entropy),))
    assert not narrowing(trained_T=nothing, entropy_T=torch.ones(2))["kept"].any()


def test_covariant_tokens_are_chosen_among_trained_ones_only() -> None:
    """X6: means and top share of the whole step; the largest covariance is outside the mask."""
    found = Covariant(function=top_covariance)(
        trained_T=TRAINED,
        id_S=torch.tensor([7, 8]),
        old_T=torch.tensor([50.0, 1.0, -1.0, 0.0, 50.0, 0.0]),
        advantage_T=torch.tensor([50.0, 2.0, -1.0, 0.0, 50.0, 0.0]),
    )["covariant"]
    assert found.tolist() == [False, True, False, False, False, False]


def test_a_draw_follows_from_seed_and_rows_alone() -> None:
    """H1: a resumed step draws the same tokens, another step or seed draws others."""
    noise = torch.Generator().manual_seed(0)
    columns = {name: 2 * torch.randn(4000, generator=noise) for name in ("old_T", "advantage_T")}
    columns["trained_T"] = torch.ones(4000, dtype=torch.bool)

    def draw(seed: int, first: int) -> list[int]:
        chooser = Covariant(function=drawn_covariance, seed=seed)
        found = chooser(id_S=torch.tensor([first]), **columns)["covariant"]
        return found.nonzero().flatten().tolist()

    assert draw(0, 5) == draw(0, 5)
    assert len({tuple(draw(seed, first)) for seed in range(3) for first in range(3)}) > 4


def test_a_choice_asks_for_the_columns_of_its_function_and_its_mask() -> None:
    """A2: the step hands over what the signature names, and no more."""
    needs = needs_of(Covariant(function=top_covariance))
    assert set(needs.tokens) == {"trained", "old", "advantage"}
    assert set(needs.sequences) == {"id"}
