"""Values that stand exactly at an edge, and what a default says."""

from __future__ import annotations

import math

import pytest
import torch

from hexpo.domain.advantages.gdpo import gdpo
from hexpo.domain.correction.weights import truncated
from hexpo.domain.distillation.coarse import valid_topk
from hexpo.domain.distillation.divergences import from_logits, jensen_shannon, skewed_reverse
from hexpo.domain.errors import WrongValue
from hexpo.domain.kl.full import full, full_measures
from hexpo.domain.losses.dppo import dppo_tv_measures
from hexpo.domain.losses.gspo import gspo_token_measures
from hexpo.domain.losses.ppo import ppo_measures
from hexpo.domain.losses.ratio import bounded_exp, is_clipped
from hexpo.domain.losses.reinforce import cispo_measures
from hexpo.domain.masks.covariance import top_covariance
from hexpo.domain.masks.gates import off_policy_sequence
from hexpo.domain.masks.m2 import m2_threshold
from hexpo.domain.metrics import values
from hexpo.domain.preference.losses import pair_measures
from hexpo.domain.sampling import Sampling
from hexpo.domain.schedule import admit, open_gate, plan
from hexpo.domain.schedule.flow import Event, Flow, follow, rest, work
from hexpo.domain.schedule.gate import passed
from hexpo.domain.schedule.residency import Part, Resident
from hexpo.domain.shaping.curriculum import PassRates, in_band
from hexpo.domain.shaping.groups import Refill


def test_a_gate_stays_open_at_its_very_bound() -> None:
    """C7: `moved >= -low` and `gone > delta`: the bound itself is inside."""
    columns = {
        "policy_T": torch.tensor([math.log(0.5)], dtype=torch.float64),
        "old_T": torch.zeros(1, dtype=torch.float64),
        "advantage_T": -torch.ones(1, dtype=torch.float64),
    }
    for low, share in ((0.5, 0.0), (0.49, 1.0)):
        assert dppo_tv_measures(**columns, gate_low=low)["clip_share"].tolist() == [share]
    at_bound_T = off_policy_sequence(
        policy_T=torch.tensor([-1.5]),
        behaviour_T=torch.tensor([-1.0]),
        owner_T=torch.tensor([0]),
        advantage_S=torch.tensor([-1.0]),
        delta=0.5,
    )
    assert at_bound_T.tolist() == [1.0]


def test_a_weight_beyond_either_bound_is_counted_as_held() -> None:
    """C7: and none between them."""
    policy_T = torch.tensor([math.log(6.0), 0.0, math.log(0.3)])
    measured = cispo_measures(
        policy_T=policy_T,
        old_T=torch.zeros(3),
        advantage_T=torch.ones(3),
        clip_low=0.5,
        clip_high=4.0,
    )
    (held,) = [name for name in measured if name not in ("ratio", "approximate_kl")]
    assert measured[held].tolist() == [1.0, 0.0, 1.0]


def test_equal_answers_are_no_win() -> None:
    """The accuracy of a pair is strict: a model that cannot tell them apart has 0."""
    measured = pair_measures(
        policy_T=torch.tensor([-1.0, -1.0]),
        owner_T=torch.tensor([0, 1]),
        group_S=torch.tensor([0, 0]),
        chosen_S=torch.tensor([True, False]),
    )
    assert measured["accuracy"].tolist() == [0.0]


def test_a_teacher_that_is_certain_is_valid() -> None:
    """S1: the whole mass on one id is a distribution, also without slack."""
    assert valid_topk(torch.tensor([[0.0, -math.inf]]), slack=0.0).tolist() == [False]
    assert valid_topk(torch.tensor([[0.0]]), slack=0.0).tolist() == [True]
    assert valid_topk(torch.tensor([[0.0], [1e-6]]), slack=1.0).tolist() == [True, False]


def test_logits_become_log_probs_at_temperature_one() -> None:
    """S3: the default divides by 1."""
    logits_TV = torch.tensor([[0.0, 1.0, 3.0]])
    assert torch.equal(from_logits(logits_TV), torch.log_softmax(logits_TV, -1))


def test_an_option_in_positions_is_refused_beyond_its_range() -> None:
    """M4: shares of mixtures, of tokens and of prompts; decay and first rate of pass rates."""
    both = torch.log_softmax(torch.zeros(1, 2), -1)
    for value in (1.0, 1.5):
        with pytest.raises(WrongValue, match="beta"):
            jensen_shannon(both, both, beta=value)
        with pytest.raises(WrongValue, match="alpha"):
            skewed_reverse(both, both, alpha=value)
    for option in ({"decay": 1.5}, {"unknown": 1.5}):
        with pytest.raises(WrongValue, match=next(iter(option))):
            PassRates(**option)
    for low, high in ((1.5, 1.6), (0.5, 1.5)):
        with pytest.raises(WrongValue, match="band"):
            in_band(["a"], PassRates(), low=low, high=high)
    with pytest.raises(WrongValue, match="share"):
        top_covariance(old_T=torch.zeros(3), advantage_T=torch.zeros(3), share=1.5)


def test_one_id_left_is_a_filter_too() -> None:
    """C2: so is any share above 0."""
    assert Sampling(top_k=1).filters
    assert Sampling(min_p=0.5).filters
    assert not Sampling().filters


def test_nothing_was_refilled_before_more_than_a_step_was_asked_for() -> None:
    """K7: a step that was asked for in part has refilled nothing."""
    assert values(Refill(wanted=4, budget=2, asked=3).metrics) == {
        "groups/filtered": 0,
        "groups/refilled": 0,
        "groups/short": 4,
    }


def test_the_oldest_passes_nobody_and_the_next_one_passes_it() -> None:
    """F1: only older groups that are alive count."""
    gate = open_gate(plan(groups=3, max_staleness=0))
    for _ in range(3):
        gate, _ = admit(gate)
    assert [passed(gate, number) for number in range(3)] == [0, 1, 2]


def test_fewer_slots_than_run_begin_nobody() -> None:
    """N5: an engine that has more running than slots, because slots were taken away, waits."""
    flow = Flow(slots=1, running=3, waiting=2)
    assert follow(flow, Event.RESUME).begins == 0


def test_rewards_without_a_row_need_no_weights() -> None:
    """B1: an empty step is no error."""
    nothing_S = torch.zeros(0, dtype=torch.int64)
    advantage_S = gdpo(
        components_S=torch.zeros(0, 2),
        scored_S=nothing_S.bool(),
        group_S=nothing_S,
        actions_S=nothing_S,
        weights=[1.0],
    )
    assert advantage_S.shape == (0,)


def test_a_mean_deviation_of_exactly_the_bound_may_stay() -> None:
    """M2PO: the mean of what stays is at most the bound; both are powers of two here."""
    behaviour_T = torch.tensor([0.0, 0.0], dtype=torch.float64)
    old_T = torch.tensor([0.0, 0.5], dtype=torch.float64)
    assert m2_threshold(old_T, behaviour_T, bound=0.125) == math.inf
    assert m2_threshold(old_T, behaviour_T, bound=0.12) == 0.0


def test_a_ratio_of_exactly_its_bound_is_not_clipped() -> None:
    """C7: the clipped value is not the larger one there."""
    ratio, less, more = torch.tensor([0.5, 1.5]), torch.tensor([-1.0, -1.0]), torch.ones(2)
    for advantage in (less, more):
        assert not is_clipped(ratio, advantage, clip_low=0.5, clip_high=0.5).any()
    measured = ppo_measures(
        policy_T=torch.zeros(1), old_T=torch.zeros(1), advantage_T=less[:1], dual_clip=1.0
    )
    assert measured["dual_clip_share"].tolist() == [0.0]


def test_an_exponent_is_bounded_by_twenty_nats() -> None:
    """C9: beyond it a ratio is no number to train on."""
    assert bounded_exp(torch.tensor([30.0], dtype=torch.float64)).tolist() == [
        pytest.approx(math.exp(20.0), rel=1e-9)
    ]


def test_every_measure_of_a_divergence_keeps_its_sign() -> None:
    """N1: KL(old || policy) by k1 is old - policy; a full divergence is reported as it is."""
    columns = {
        "policy_T": torch.tensor([-1.0, -2.0]),
        "old_T": torch.tensor([-1.5, -1.0]),
        "owner_T": torch.tensor([0, 0]),
        "advantage_T": torch.ones(2),
        "length_S": torch.tensor([2]),
    }
    assert gspo_token_measures(**columns)["approximate_kl"].tolist() == [-0.5, 1.0]
    logprobs_TV = torch.log_softmax(torch.tensor([[0.0, 1.0]]), -1)
    other_TV = torch.log_softmax(torch.tensor([[0.0, 0.0]]), -1)
    measured = full_measures(policy_logprobs_T=logprobs_TV, reference_logprobs_T=other_TV)
    assert torch.equal(
        measured["kl"], full(policy_logprobs_T=logprobs_TV, reference_logprobs_T=other_TV)
    )


def test_work_is_counted_up_and_down() -> None:
    """R2: a pause is complete when the last piece of work has ended."""
    busy = work(work(Flow()))
    assert busy.working == 2
    assert rest(rest(busy).flow).flow.working == 0


def test_what_holds_nothing_may_say_so_and_a_debt_is_refused() -> None:
    """`plan`: 0 bytes are legal."""
    assert Resident(name="a", part=Part.POLICY, group="g", held=0).held == 0
    with pytest.raises(WrongValue, match="held is -1"):
        Resident(name="a", part=Part.POLICY, group="g", held=-1)


def test_a_bound_of_weights_may_lie_below_one() -> None:
    """M4: any bound above 0 is legal."""
    weights_T = truncated(
        old_T=torch.zeros(1), behaviour_T=torch.zeros(1), owner_T=torch.tensor([0]), bound=0.5
    )
    assert weights_T.tolist() == [0.5]
