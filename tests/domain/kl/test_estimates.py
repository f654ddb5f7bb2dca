"""KL estimates: values, gradients, overflow, and what their mean's gradient is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hexpo.domain.errors import WrongColumn, WrongValue
from hexpo.domain.kl import (
    KL_ESTIMATORS,
    WEIGHTINGS,
    Weighting,
    capped,
    k3,
    kl_estimator,
    kl_term,
    unbiased_kl_term,
)

DATA = json.loads((Path(__file__).parents[2] / "data" / "golden-vectors.json").read_text())
SAMPLED = [name for name in KL_ESTIMATORS if not name.startswith("full")]

P, Q, SAMPLER = (0.5, 0.3, 0.2), (0.2, 0.3, 0.5), (0.4, 0.4, 0.2)
REVERSE_KL_GRADIENT = (0.320702, -0.082466, -0.238236)


def _value_and_gradient(name: str, policy: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    policy = policy.clone().requires_grad_()
    value = kl_estimator(name).function(policy_T=policy, reference_T=reference)
    value.sum().backward()
    assert policy.grad is not None
    return value.detach(), policy.grad


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"])
def test_value_and_gradient_equal_the_oracle(name: str) -> None:
    """C8."""
    expected = DATA["kl(logprob=log_prob, ref=old_log_prob)"][name]
    policy = torch.tensor(DATA["loss_fixture"]["log_prob"])
    reference = torch.tensor(DATA["loss_fixture"]["old_log_prob"])
    value, gradient = _value_and_gradient(name, policy, reference)
    assert_close(value, torch.tensor(expected["value"]), rtol=1e-5, atol=1e-5)
    assert_close(gradient, torch.tensor(expected["grad"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [("k1", 0.693147, 1.0), ("k2", 0.240227, 0.693147), ("k3", 0.193147, 0.5)],
)
def test_values_at_twice_the_reference(name: str, value: float, slope: float) -> None:
    """O07.1."""
    policy, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    got, gradient = _value_and_gradient(name, policy, reference)
    assert_close(got, torch.tensor([value]), rtol=0, atol=1e-6)
    assert_close(gradient, torch.tensor([slope]), rtol=0, atol=1e-6)


def _expected_gradient(
    sampler: tuple[float, ...], term: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Gradient to the logits of a term's mean over the three tokens that `sampler` draws."""
    logits = torch.tensor(P, dtype=torch.float64).log().requires_grad_()
    policy = logits.log_softmax(0)
    drawn = torch.tensor(sampler, dtype=torch.float64)
    terms = term(policy, torch.tensor(Q, dtype=torch.float64).log(), drawn.log())
    (drawn * terms).sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize(
    ("name", "gradient"),
    [
        ("k1", (0.0, 0.0, 0.0)),
        ("k3", (0.3, 0.0, -0.3)),
        ("k2", REVERSE_KL_GRADIENT),
        ("k1+", REVERSE_KL_GRADIENT),
        ("abs+", REVERSE_KL_GRADIENT),
        ("k3+", REVERSE_KL_GRADIENT),
    ],
)
def test_the_mean_gradient_on_policy_is_what_the_name_promises(
    name: str, gradient: tuple[float, ...]
) -> None:
    """O07.2, C8: enumerated."""
    estimator = kl_estimator(name)
    got = _expected_gradient(
        P, lambda p, q, _: kl_term(policy_T=p, reference_T=q, estimator=estimator)
    )
    assert_close(got, torch.tensor(gradient).double(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("sampler", [P, SAMPLER])
@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k1+", "k2+", "k3+", "abs+", "low_var_kl"])
def test_unbiased_is_the_gradient_of_the_reverse_kl_whoever_sampled(
    name: str, sampler: tuple[float, ...]
) -> None:
    """O07.2, X1: enumerated, on-policy and off-policy."""
    estimator = kl_estimator(name, unbiased=True)
    got = _expected_gradient(
        sampler,
        lambda p, q, s: unbiased_kl_term(
            policy_T=p, reference_T=q, behaviour_T=s, estimator=estimator
        ),
    )
    assert_close(got, torch.tensor(REVERSE_KL_GRADIENT).double(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "gradient"),
    [
        ("k2", (0.3837, -0.1706, -0.2130)),
        ("k1+", (0.6414, -0.1649, -0.4765)),
        ("k3+", (0.3414, -0.1649, -0.1765)),
        ("abs+", (0.4581, -0.2749, -0.1833)),
    ],
)
def test_a_differentiated_weight_would_be_wrong_there(
    name: str, gradient: tuple[float, ...]
) -> None:
    """X1: why the estimator decides, never the user."""
    assert WEIGHTINGS[name] is Weighting.CONSTANT
    function = kl_estimator(name).function
    got = _expected_gradient(
        SAMPLER, lambda p, q, s: (p - s).exp() * function(policy_T=p, reference_T=q)
    )
    assert_close(got, torch.tensor(gradient).double(), rtol=0, atol=6e-5)


def test_k3_is_capped_in_value_and_still_pushes_up() -> None:
    """O07.3, C9: e^100 is no float32; the row without drift is as it was."""
    policy, reference = torch.tensor([-100.5, -0.7]), torch.tensor([-0.5, -0.6])
    value, gradient = _value_and_gradient("k3", policy, reference)
    assert_close(value, torch.tensor([10.0, math.expm1(0.1) - 0.1]), rtol=1e-5, atol=1e-6)
    assert_close(gradient, torch.tensor([-12.610869, -math.expm1(0.1)]), rtol=1e-6, atol=1e-6)
    assert capped(policy_T=policy, reference_T=reference).tolist() == [True, False]


def test_k3_far_above_the_reference_is_capped_and_keeps_its_gradient() -> None:
    """The oracle's k3_extreme; the gradient still pulls down."""
    (expected,) = DATA["k3_extreme(logp=[-30,-.1],ref=[-.1,-30])"]
    policy, reference = torch.tensor([-30.0, -0.1]), torch.tensor([-0.1, -30.0])
    value, gradient = _value_and_gradient("k3", policy, reference)
    assert_close(value, torch.tensor(expected))
    assert_close(gradient, torch.tensor([-12.610869, 1.0]), rtol=1e-6, atol=1e-6)
    assert bool(capped(policy_T=policy, reference_T=reference).all())


@given(gap=st.floats(2.5, 2.7))
def test_the_cap_of_k3_joins_without_a_step(gap: float) -> None:
    """Value and slope are continuous where -d reaches 2.610869."""
    policy, reference = torch.tensor([-gap], dtype=torch.float64), torch.zeros(1).double()
    value, gradient = _value_and_gradient("k3", policy, reference)
    held = min(gap, 2.610868638)
    assert_close(
        value, torch.tensor([math.expm1(held) - held], dtype=torch.float64), rtol=1e-8, atol=1e-8
    )
    assert_close(
        gradient, torch.tensor([-math.expm1(held)], dtype=torch.float64), rtol=1e-8, atol=1e-8
    )
    is_capped = bool(capped(policy_T=policy, reference_T=reference))
    if abs(gap - 2.610868638) > 1e-6:
        assert is_capped == (gap > held)


LOGPROBS = st.floats(-1e4, 0.0, width=32)


@pytest.mark.parametrize("name", SAMPLED)
@given(policy=LOGPROBS, reference=LOGPROBS, behaviour=LOGPROBS)
def test_finite_log_probs_give_finite_values_and_gradients(
    name: str, policy: float, reference: float, behaviour: float
) -> None:
    """C9: with and without the weight."""
    leaf = torch.tensor([policy], requires_grad=True)
    terms = kl_estimator(name).function(policy_T=leaf, reference_T=torch.tensor([reference]))
    if name in WEIGHTINGS:
        terms = terms + unbiased_kl_term(
            policy_T=leaf,
            reference_T=torch.tensor([reference]),
            behaviour_T=torch.tensor([behaviour]),
            estimator=kl_estimator(name, unbiased=True),
        )
    terms.sum().backward()
    assert leaf.grad is not None
    assert bool(terms.isfinite().all())
    assert bool(leaf.grad.isfinite().all())


@given(policy=LOGPROBS, reference=LOGPROBS)
def test_k3_is_never_negative_and_0_where_both_agree(policy: float, reference: float) -> None:
    """C10: at the first step the KL to the reference is 0."""
    p, q = torch.tensor([policy]), torch.tensor([reference])
    assert float(k3(policy_T=p, reference_T=q)) >= -1e-6
    assert float(k3(policy_T=p, reference_T=p)) == 0.0


def test_unknown_and_impossible_names_are_refused_with_the_nearest() -> None:
    """M1, for the reward as for the loss; `abs` and `full` have no unbiased form."""
    with pytest.raises(WrongValue, match="did you mean low_var_kl"):
        kl_estimator("low_var")
    with pytest.raises(WrongValue, match="there are: abs"):
        kl_estimator("jeffreys")
    with pytest.raises(WrongValue, match="exact gradient"):
        kl_estimator("full+")
    for name in ("abs", "full"):
        with pytest.raises(WrongValue, match="no unbiased form"):
            kl_estimator(name, unbiased=True)


def test_other_names_of_the_same_are_the_same() -> None:
    """`k2+` is `k2`."""
    for other, name in [("kl", "k1"), ("mse", "k2"), ("low_var_kl", "k3"), ("k2+", "k2")]:
        assert kl_estimator(other) == kl_estimator(name)
    for other, name in [("kl+", "k1+"), ("mse+", "k2"), ("low_var_kl+", "k3+")]:
        assert kl_estimator(other, unbiased=True) == kl_estimator(name, unbiased=True)


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
def test_an_entry_states_value_gradient_and_source(name: str) -> None:
    """The listing prints them."""
    entry = KL_ESTIMATORS[name]
    assert "value" in entry.formula or "sum over" in entry.formula
    assert entry.source
    entry.check({})


def test_columns_of_different_axes_are_refused() -> None:
    """The message names both."""
    with pytest.raises(WrongColumn, match="reference has the axes"):
        k3(policy_T=torch.zeros(3), reference_T=torch.zeros(2))
