"""Names of algorithms: what is known, what is refused, and what a listing shows."""

from __future__ import annotations

import pytest
import torch

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.algorithms import CATALOGUES, lines
from hexpo.domain.catalogue import Entry, by_name, did_you_mean, find
from hexpo.domain.errors import WrongValue
from hexpo.domain.estimators import Estimator
from hexpo.domain.losses.catalogue import ELSEWHERE, LOSSES, OPTIONS_ELSEWHERE, TERMS
from hexpo.domain.losses.ppo import ppo

ALL = [(kind, entry) for kind, entries in CATALOGUES.items() for entry in entries.values()]


@pytest.mark.parametrize(("kind", "entry"), ALL, ids=lambda each: getattr(each, "name", each))
def test_every_algorithm_says_what_it_computes_and_where_it_is_from(
    kind: str, entry: Entry
) -> None:
    """algorithms.md: every function's docstring has its formula and its source."""
    assert entry.summary.endswith((".", ")")), kind
    assert entry.formula
    assert not entry.formula.startswith(("Args", "Returns", "Source"))
    assert entry.source


@pytest.mark.parametrize(("kind", "entry"), ALL, ids=lambda each: getattr(each, "name", each))
def test_every_algorithm_refuses_an_option_it_does_not_have(kind: str, entry: Entry) -> None:
    """M1, O21: with the nearest name, before anything runs."""
    with pytest.raises(WrongValue, match="has no option 'clip_ratio_hgih'"):
        entry.check({"clip_ratio_hgih": 0.3})


@pytest.mark.parametrize("entry", [*LOSSES.values(), *TERMS.values()], ids=lambda e: e.name)
def test_defaults_run_on_no_row(entry: Entry) -> None:
    """An empty micro-batch is ordinary, and the defaults lie in their ranges."""
    entry.check({})


def test_a_misspelt_option_names_its_neighbour() -> None:
    """O21.1."""
    with pytest.raises(WrongValue, match=r"did you mean clip_high"):
        LOSSES["ppo"].check({"clip_hgih": 0.3})
    with pytest.raises(WrongValue, match=r"clip_low is -0\.1"):
        LOSSES["ppo"].check({"clip_low": -0.1})


def test_an_option_without_a_default_must_be_given() -> None:
    """M2."""

    def scaled(*, policy_T: torch.Tensor, scale: float) -> torch.Tensor:
        return policy_T * scale

    with pytest.raises(WrongValue, match="needs the option scale"):
        Entry(name="scaled", function=scaled).check({})
    Entry(name="scaled", function=scaled).check({"scale": 2.0})


@pytest.mark.parametrize(
    ("name", "means", "mode"),
    [
        ("ppo", "ppo", None),
        ("dapo", "ppo", Mode.TOKEN_MEAN),
        ("grpo", "ppo", Mode.SEQ_MEAN_TOKEN_MEAN),
        ("dr_grpo", "ppo", Mode.SEQ_MEAN_TOKEN_SUM_NORM),
        ("gmpo", "geo_mean", Mode.SEQ_MEAN_TOKEN_MEAN),
    ],
)
def test_names_of_other_libraries_bring_their_aggregation(
    name: str, means: str, mode: Mode | None
) -> None:
    """algorithms.md, names elsewhere."""
    entry = find(name, LOSSES, what="policy loss", elsewhere=ELSEWHERE)
    assert (entry.name, entry.default_mode) == (means, mode)


@pytest.mark.parametrize(
    ("name", "hint"), [("bnpo", "token-mean"), ("ipo", "dppo_tv"), ("bypass", "aipo")]
)
def test_names_without_an_equivalent_are_refused_with_a_way_out(name: str, hint: str) -> None:
    """A1: bnpo's value depends on the micro-batch."""
    with pytest.raises(WrongValue, match=hint):
        find(name, LOSSES, what="policy loss", elsewhere=ELSEWHERE)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """M1."""
    with pytest.raises(WrongValue, match=r"unknown policy loss 'gsppo'; did you mean gspo"):
        find("gsppo", LOSSES, what="policy loss", elsewhere=ELSEWHERE)
    with pytest.raises(WrongValue, match="there are: "):
        find("zzzzzz", LOSSES, what="policy loss")


def test_every_foreign_name_leads_to_one_here() -> None:
    """A hint that names nothing is no help."""
    for foreign in ELSEWHERE.values():
        assert foreign.means is None or foreign.means in LOSSES
    options = {name for entry in LOSSES.values() for name in entry.options}
    for ours in OPTIONS_ELSEWHERE.values():
        assert ours.split()[0] in options


def test_a_catalogue_is_immutable_and_has_each_name_once() -> None:
    """No registry to mutate."""
    with pytest.raises(TypeError):
        LOSSES["mine"] = LOSSES["ppo"]  # type: ignore[index]
    twice = Entry(name="ppo", function=ppo, unit=Unit.TOKEN)
    with pytest.raises(WrongValue, match="given twice in one catalogue: ppo"):
        by_name(twice, twice)


def test_the_listing_has_a_line_for_every_name() -> None:
    """`hexpo algorithms`."""
    shown = {(line.kind, line.name) for line in lines()}
    modes = {("aggregation", mode.value) for mode in Mode}
    assert shown == {(kind, entry.name) for kind, entry in ALL} | modes
    (line,) = (each for each in lines("policy loss") if each.name == "ppo")
    assert line.options == {"clip_low": "0.2", "clip_high": "0.2", "dual_clip": "None"}
    assert line.needs == ("advantage", "old", "policy")
    assert (line.unit, line.mode) == ("token", "")
    assert "1707.06347" in line.source
    asked = {line.name: line.asks for line in lines("advantage")}
    assert asked["gae"] == ("critic",)
    assert asked["rloo"] == ("at least 2 samples a prompt",)
    assert asked["reinforce_plus_plus"] == ()


def test_options_are_tried_on_columns_without_a_row() -> None:
    """A function that would fail on a row of zeros is not called with one."""
    seen: list[tuple[int, ...]] = []

    def wide(*, policy_topk_T: torch.Tensor, advantage_T: torch.Tensor) -> torch.Tensor:
        seen.extend((tuple(policy_topk_T.shape), tuple(advantage_T.shape)))
        return advantage_T

    Entry(name="wide", function=wide, wide=frozenset({"policy_topk"})).check({})
    assert seen == [(0, 2), (0,)]


def test_an_estimator_needs_one_sample_unless_it_says_more() -> None:
    """B7: only a comparison within a group asks for a second one."""

    def plain(*, score_S: torch.Tensor) -> torch.Tensor:
        return score_S

    assert Estimator(function=plain).min_samples == 1


def test_a_name_that_stands_in_two_lists_is_offered_once() -> None:
    """M3: a loss of ours, and a word of another library's."""
    assert did_you_mean("ppoo", ["ppo", "ipo", "ppo"]) == "; did you mean ppo or ipo?"
    assert did_you_mean("zzzz", ["b", "a", "b"]) == "; there are: a, b"
