"""Whom a teacher teaches, and which of its answers count."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Sequences
from hexpo.domain.batch.assemble import assemble
from hexpo.domain.distillation.losses import forward_kl, topk_measures
from hexpo.domain.distillation.sampled import sampled
from hexpo.domain.distillation.teachers import (
    NOBODY,
    Routing,
    Taught,
    role_of,
    teacher_weight,
)
from hexpo.domain.errors import WrongValue
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.objective import Factor, Loss, Objective, Split, Term
from hexpo.domain.signature import needs_of
from hexpo.domain.trajectory import (
    Graded,
    Group,
    Prompt,
    Scored,
    StopReason,
    Ticket,
    Trajectory,
)

SOURCES = ["sums", "words", "", "code"]


@given(sources=st.lists(st.sampled_from(SOURCES), max_size=12), otherwise=st.integers(-1, 2))
def test_each_row_has_exactly_the_teacher_of_its_source(sources: list[str], otherwise: int) -> None:
    """S4: in any order of rows; what nobody names has the general teacher, or none."""
    routing = Routing(sources={"sums": 1, "words": 0}, otherwise=otherwise)
    role_S = torch.tensor([role_of(source) for source in sources], dtype=torch.int64)
    expected = [{"sums": 1, "words": 0}.get(source, otherwise) for source in sources]
    assert routing.of(role_S).tolist() == expected


def test_without_a_source_all_rows_have_one_teacher_or_none() -> None:
    """S4: the smallest configurations."""
    role_S = torch.tensor([role_of("sums"), role_of("")])
    assert Routing(otherwise=0).of(role_S).tolist() == [0, 0]
    assert Routing().of(role_S).tolist() == [NOBODY, NOBODY]


def test_a_role_is_what_a_batch_says_of_a_prompt() -> None:
    """The route reads the column that every batch has."""
    prompt = Prompt(id="a", messages=(), source="sums")
    row = Trajectory(
        id=0,
        group=0,
        prompt=prompt,
        tokens=torch.tensor([1, 2]),
        prompt_length=1,
        action=torch.tensor([False, True]),
        behaviour=torch.tensor([torch.nan, -1.0]),
        version=torch.tensor([0, 0]),
        stop=StopReason.STOP,
    )
    ticket = Ticket(number=0, prompt=prompt, version=0, samples=1)
    group = Group(ticket=ticket, rows=(Graded(trajectory=row, outcome=Scored(value=1.0)),))
    batch, _ = assemble([group])
    assert Routing(sources={"sums": 1}).of(batch.sequences["role"]).tolist() == [1]
    assert Routing(sources={"words": 1}).of(batch.sequences["role"]).tolist() == [NOBODY]


def test_a_token_is_taught_where_the_teacher_gave_a_log_prob() -> None:
    """C3: NaN, infinity and what is no distribution are left out, never filled."""
    nan, inf = torch.nan, torch.inf
    trained_T = torch.tensor([True, True, True, False, True])
    teacher_T = torch.tensor([-1.0, nan, -inf, -1.0, -0.5])
    heard = Taught(reads=("teacher",))
    assert needs_of(heard).tokens == ("trained", "teacher")
    assert heard(trained_T=trained_T, teacher_T=teacher_T)["taught"].tolist() == [
        True, False, False, False, True,
    ]  # fmt: skip
    assert trained_T.sum() == 4  # what came in is as it was
    topk_T = torch.tensor([[0.5, 0.25], [0.9, 0.9], [0.5, nan], [0.5, 0.5], [0.7, 0.3]]).log()
    both = Taught(reads=("teacher", "teacher_topk"), where="kept")
    assert needs_of(both).tokens == ("kept", "teacher", "teacher_topk")
    kept = both(kept_T=trained_T, teacher_T=torch.zeros(5), teacher_topk_T=topk_T)["taught"]
    assert kept.tolist() == [True, False, False, False, True]
    assert pickle.loads(pickle.dumps(both)) == both  # it travels to the ranks


def test_a_teacher_weighs_its_own_tokens_and_no_denominator() -> None:
    """A2, S5: weight 3 of one teacher of two triples its half of the mean."""
    columns = {
        "policy": torch.tensor([-1.0, -1.0, -2.0, -2.0]),
        "teacher": torch.tensor([-2.0, -2.0, -1.0, torch.nan]),
        "taught": torch.tensor([True, True, True, False]),
        "taught_by": torch.tensor([0, 0, 1, NOBODY]),
        "owner": torch.tensor([0, 0, 1, 2]),
    }
    assert teacher_weight(taught_by_T=columns["taught_by"], weights=(3.0, 0.5)).tolist() == [
        3.0, 3.0, 0.5, 0.0,
    ]  # fmt: skip
    term = Term(
        name="d",
        loss=Loss(function=sampled),
        mask="taught",
        count="taught",
        split=Split(column="taught_by", names=("a", "b")),
        factors=(Factor(name="weight", function=teacher_weight, options={"weights": (3.0, 0.5)}),),
    )
    objective = Objective(terms=(term,))
    assert objective.token_columns == {"teacher", "taught", "taught_by"}
    rows = Sequences.of(
        {
            "id": torch.arange(3),
            "group": torch.arange(3),
            "length": torch.tensor([2, 1, 1]),
            "taught": torch.tensor([2, 1, 0]),
        }
    )
    loss, metrics = objective.evaluate(columns, objective.weigh(rows))
    assert loss.item() == pytest.approx((3 * 0.5 * 2 + 0.5 * 0.5) / 3)
    assert metrics["loss/d/a"].value == pytest.approx(1.0)
    assert metrics["loss/d/b"].value == pytest.approx(0.25 / 3)
    assert (metrics["d/a/tokens"].value, metrics["d/b/tokens"].value) == (2, 1)


def test_only_terms_of_tokens_have_parts() -> None:
    """A row's or a pair's number belongs to no single token."""
    with pytest.raises(WrongValue, match="no term of tokens"):
        Term(
            name="rows",
            loss=Loss(function=gspo, unit=Unit.SEQUENCE),
            split=Split(column="taught_by", names=("a",)),
        )


def test_the_ids_of_a_distribution_are_asked_from_the_store() -> None:
    """Y11: log-probs at kept ids come from the head, which ids from the teacher's column."""
    term = Term(name="d", loss=Loss(function=forward_kl, measures=topk_measures))
    objective = Objective(terms=(term,))
    assert objective.token_columns == {"teacher_topk", "teacher_ids", "trained"}
    assert objective.statistics == {"policy_topk"}
    assert objective.compares == (0,)
    plain = Objective(terms=(Term(name="s", loss=Loss(function=sampled)), term))
    assert plain.compares == (1,)
    assert plain.separable


def test_terms_may_be_taken_apart_and_add_up() -> None:
    """A1: a head that makes some terms in chunks and others at once changes nothing."""
    noise = torch.Generator().manual_seed(2)
    topk_T = torch.randn(2, 4, 5, generator=noise).log_softmax(-1)[..., :3]
    columns = {
        "policy": -torch.rand(4, generator=noise),
        "teacher": -torch.rand(4, generator=noise),
        "policy_topk": topk_T[0],
        "teacher_topk": topk_T[1],
        "trained": torch.tensor([True, True, False, True]),
        "owner": torch.tensor([0, 0, 1, 1]),
    }
    terms = (
        Term(name="s", loss=Loss(function=sampled), coefficient=0.5),
        Term(name="d", loss=Loss(function=forward_kl), mode=Mode.SEQ_MEAN_TOKEN_MEAN),
    )
    objective = Objective(terms=terms)
    rows = Sequences.of(
        {
            "id": torch.arange(2),
            "group": torch.arange(2),
            "length": torch.tensor([2, 2]),
            "trained": torch.tensor([2, 1]),
        }
    )
    weighed = objective.weigh(rows)
    whole, _ = objective.evaluate(columns, weighed)
    values = []
    for places in ((0,), (1,)):
        part, own = objective.take(places, weighed)
        assert [term.name for term in part.terms] == ["sd"[places[0]]]
        values.append(float(part.evaluate(columns, own)[0]))
    assert sum(values) == pytest.approx(float(whole))
    assert values[0] != pytest.approx(values[1])
