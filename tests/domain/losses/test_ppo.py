"""PPO's clips, token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.losses.ppo import ppo, ppo_measures

TABLE = [
    (1.1, 1.0, -1.10, -1.1),
    (2.0, 1.0, -1.28, 0.0),
    (5.0, 1.0, -1.28, 0.0),
    (0.5, 1.0, -0.50, -0.5),
    (0.5, -1.0, 0.80, 0.0),
    (2.5, -1.0, 2.50, 2.5),
    (5.0, -1.0, 3.00, 0.0),
]
OPTIONS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
FLOATS = st.floats(-3, 3, width=32)


def test_the_published_table_of_clip_and_dual_clip() -> None:
    """O06, C7: losses, gradients and shares."""
    ratios, advantages, losses, gradients = map(torch.tensor, zip(*TABLE, strict=True))
    policy_T = ratios.log().requires_grad_()
    columns: dict[str, Any] = {
        "policy_T": policy_T,
        "old_T": torch.zeros(7),
        "advantage_T": advantages,
    }
    terms_T = ppo(**columns, **OPTIONS)
    terms_T.sum().backward()
    torch.testing.assert_close(terms_T.detach(), losses, rtol=0, atol=1e-5)
    assert policy_T.grad is not None
    torch.testing.assert_close(policy_T.grad, gradients, rtol=0, atol=1e-5)
    with torch.no_grad():
        measured = ppo_measures(**columns, **OPTIONS)
    assert measured["clip_share"].mean().item() == pytest.approx(3 / 7)
    assert measured["dual_clip_share"].mean().item() == pytest.approx(1 / 7)


def test_a_token_without_advantage_is_not_counted_as_clipped() -> None:
    """C7: it pulls nowhere, whatever its ratio."""
    measured = ppo_measures(
        policy_T=torch.tensor([2.0, -2.0]), old_T=torch.zeros(2), advantage_T=torch.zeros(2)
    )
    assert measured["clip_share"].tolist() == [0.0, 0.0]


def test_dual_clip_off_lets_a_bad_token_pull_as_its_ratio_says() -> None:
    """O06: 5 without dual clip."""
    terms_T = ppo(
        policy_T=torch.tensor([math.log(5.0)]), old_T=torch.zeros(1), advantage_T=-torch.ones(1)
    )
    assert terms_T.item() == pytest.approx(5.0, abs=1e-5)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=9))
def test_in_the_first_update_the_ratio_is_one_and_nothing_is_clipped(
    pairs: list[tuple[float, float]],
) -> None:
    """C4: exactly, where old is this pass's own."""
    policy_T, advantage_T = torch.tensor(pairs).unbind(1)
    columns: dict[str, Any] = {
        "policy_T": policy_T,
        "old_T": policy_T.clone(),
        "advantage_T": advantage_T,
    }
    measured = ppo_measures(**columns, **OPTIONS)
    assert measured["ratio"].eq(1).all()
    for name in ("approximate_kl", "clip_share", "dual_clip_share"):
        assert measured[name].eq(0).all()
    assert ppo(**columns, **OPTIONS).equal(-advantage_T)


@given(FLOATS, FLOATS, FLOATS)
def test_a_clip_never_makes_the_loss_better(policy: float, old: float, advantage: float) -> None:
    """The clipped loss is a pessimistic bound; dual clip bounds it for bad tokens only."""
    columns: dict[str, Any] = {
        "policy_T": torch.tensor([policy]),
        "old_T": torch.tensor([old]),
        "advantage_T": torch.tensor([advantage]),
    }
    plain = -advantage * math.exp(policy - old)
    clipped = ppo(**columns, clip_low=0.2, clip_high=0.28).item()
    assert clipped >= plain - 1e-4 * abs(plain) - 1e-6
    dual = ppo(**columns, **OPTIONS).item()
    if advantage >= 0:
        assert dual == clipped
    else:
        assert dual == pytest.approx(min(clipped, -3 * advantage), rel=1e-6)


@pytest.mark.parametrize("drift", [1e4, -1e4, 300.0])
def test_a_ratio_far_out_stays_a_number(drift: float) -> None:
    """C9: the exponent is bounded."""
    policy_T = torch.tensor([drift], requires_grad=True)
    terms_T = ppo(policy_T=policy_T, old_T=torch.zeros(1), advantage_T=-torch.ones(1))
    terms_T.sum().backward()
    assert terms_T.isfinite().all()
    assert policy_T.grad is not None
    assert policy_T.grad.isfinite().all()


@pytest.mark.parametrize(
    "options", [{"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": -1.0}, {"dual_clip": 1.0}]
)
def test_meaningless_clips_are_refused(options: dict[str, Any]) -> None:
    """M4: never clamped in silence."""
    columns: dict[str, Any] = dict.fromkeys(("policy_T", "old_T", "advantage_T"), torch.zeros(0))
    with pytest.raises(WrongValue, match=next(iter(options))):
        ppo(**columns, **options)


def test_columns_of_other_axes_are_refused_by_name() -> None:
    """A broadcast would train a token on another's advantage."""
    with pytest.raises(WrongColumn, match="advantage"):
        ppo(policy_T=torch.zeros(3), old_T=torch.zeros(3), advantage_T=torch.zeros(1))
