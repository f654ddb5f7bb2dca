"""Named terms over one step: no split, no masked number and no dead row changes them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.catalogue import Entry
from hexpo.domain.correction.catalogue import WEIGHTS
from hexpo.domain.correction.weights import truncated
from hexpo.domain.distillation.catalogue import DISTILLATIONS
from hexpo.domain.errors import MissingCount, WrongColumn, WrongValue
from hexpo.domain.kl.term import kl_term
from hexpo.domain.losses.catalogue import LOSSES, TERMS
from hexpo.domain.losses.gspo import gspo
from hexpo.domain.losses.ppo import ppo, ppo_measures
from hexpo.domain.losses.supervised import nll
from hexpo.domain.masks.catalogue import GATES
from hexpo.domain.masks.gates import off_policy_sequence
from hexpo.domain.metrics import merge, values
from hexpo.domain.objective import Factor, Loss, Objective, Proximal, Term
from hexpo.domain.preference.catalogue import PREFERENCES
from hexpo.entrypoints.testing.strategies import batches, indices

ENTRIES = [
    *LOSSES.values(),
    *TERMS.values(),
    *DISTILLATIONS.values(),
    *PREFERENCES.values(),
    Entry(name="kl", function=kl_term, unit=Unit.TOKEN),
]
FACTORS = [*WEIGHTS.values(), *GATES.values()]
LEAVES = ("policy", "entropy", "prediction", "mtp", "policy_topk")
KEPT = 3


def term_of(entry: Entry, mode: Mode, *factors: Entry) -> Term:
    assert entry.unit is not None
    return Term(
        name=entry.name,
        loss=Loss(function=entry.function, unit=entry.unit, measures=entry.measures),
        mode=mode,
        constant=7.0,
        factors=tuple(Factor(name=each.name, function=each.function) for each in factors),
    )


def modes_of(entry: Entry) -> list[Mode]:
    if entry.unit is Unit.TOKEN:
        return list(Mode)
    return [mode for mode in Mode if mode not in (Mode.TOKEN_MEAN, Mode.TOKEN_SUM)]


def columns_of(batch: Batch, seed: int) -> dict[str, Tensor]:
    """Every column that any loss reads, (T, ...) in float64; the leaves carry gradient."""
    noise = torch.Generator().manual_seed(seed)
    tokens = int(batch.tokens.shape[0])

    def some(*shape: int) -> Tensor:
        return torch.randn(tokens, *shape, generator=noise, dtype=torch.float64)

    distribution = some(KEPT + 2).log_softmax(-1)
    columns = {
        "trained": batch.tokens["trained"],
        "owner": batch.owner,
        **{name: -some().abs() for name in ("policy", "old", "behaviour", "reference", "teacher")},
        "advantage": some(),
        "entropy": some().abs(),
        "prediction": some(),
        "value": some(),
        "return": some(),
        "mtp": -some().abs(),
        "observation_weight": some().abs(),
        "correction": some().abs(),
        "repeats": some().abs(),
        "covariant": some() > 0.5,
        "policy_topk": distribution[:, :KEPT],
        "teacher_topk": some(KEPT + 2).log_softmax(-1)[:, :KEPT],
    }
    return columns | {name: columns[name].clone().requires_grad_() for name in LEAVES}


def part_of(columns: dict[str, Tensor], batch: Batch, rows: Tensor) -> dict[str, Tensor]:
    """The columns of some rows, in their order, as a micro-batch has them."""
    numbered = batch.with_tokens(token=torch.arange(int(batch.tokens.shape[0])))
    part = numbered.select(rows)
    index = part.tokens["token"]
    return {name: column[index] for name, column in columns.items()} | {"owner": part.owner}


def evaluate(
    objective: Objective, columns: dict[str, Tensor], batch: Batch, parts: list[Tensor]
) -> tuple[float, dict[str, Tensor], dict[str, float]]:
    """Loss, gradients of the leaves and merged metrics of a step that is done in parts."""
    step = objective.weigh(batch.sequences)
    leaves = {name: columns[name].detach().clone().requires_grad_() for name in LEAVES}
    columns = columns | leaves
    total, reports = 0.0, []
    for rows in parts:
        loss, metrics = objective.evaluate(part_of(columns, batch, rows), step.select(rows))
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
        reports.append(metrics)
    gradients = {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }
    return total, gradients, values(merge(reports))


def in_pairs(batch: Batch) -> Batch:
    """The batch without its odd row, every two rows in a row one pair."""
    even = batch.select(slice(0, len(batch) // 2 * 2))
    place = torch.arange(len(even))
    return Batch.of(
        even.sequences.with_columns(
            group=place // 2 * 13 % 7 * 10 + place // 2,
            chosen=place % 2 == 0,
            reference_point=torch.full((len(even),), 0.25),
        ),
        dict(even.tokens),
    )


def close(first: object, second: object) -> None:
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_split_changes_loss_gradient_or_metric(entry: Entry, data: st.DataObject) -> None:
    """A1, A6, N1: every loss of the catalogues, every mode it allows, over random splits."""
    batch = in_pairs(data.draw(batches(max_rows=7)))
    objective = Objective(
        terms=(term_of(entry, data.draw(st.sampled_from(modes_of(entry)))),),
        proximal=Proximal.STORED,
    )
    columns = columns_of(batch, data.draw(st.integers(0, 999)))
    whole = evaluate(objective, columns, batch, [torch.arange(len(batch))])
    pairs = data.draw(indices(len(batch) // 2))
    parts = [torch.stack([2 * pair, 2 * pair + 1], dim=1).flatten() for pair in pairs]
    split = evaluate(objective, columns, batch, parts)
    for one, other in zip(whole, split, strict=True):
        close(one, other)


@pytest.mark.parametrize("factor", FACTORS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("name", ["ppo", "gspo"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_split_changes_a_weighted_term(name: str, factor: Entry, data: st.DataObject) -> None:
    """A1 with importance weights and gates: they touch numerators only (X6)."""
    batch = data.draw(batches(max_rows=6))
    term = term_of(LOSSES[name], Mode.SEQ_MEAN_TOKEN_MEAN, factor)
    objective = Objective(terms=(term,), proximal=Proximal.STORED)
    columns = columns_of(batch, data.draw(st.integers(0, 999)))
    whole = evaluate(objective, columns, batch, [torch.arange(len(batch))])
    split = evaluate(objective, columns, batch, data.draw(indices(len(batch))))
    for one, other in zip(whole, split, strict=True):
        close(one, other)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf")])
def test_what_a_masked_token_holds_has_no_effect(entry: Entry, junk: float) -> None:
    """A3, B5: NaN and inf at masked tokens change neither value nor gradient."""
    batch = in_pairs(ragged())
    objective = Objective(terms=(term_of(entry, modes_of(entry)[-1]),), proximal=Proximal.STORED)
    columns = columns_of(batch, seed=3)
    masked = ~batch.tokens["trained"]
    dirty = {
        name: column.detach().masked_fill(masked.reshape(-1, *[1] * (column.dim() - 1)), junk)
        if column.is_floating_point()
        else column
        for name, column in columns.items()
    }
    rows = [torch.arange(len(batch))]
    clean_loss, clean_gradients, _ = evaluate(objective, columns, batch, rows)
    dirty_loss, dirty_gradients, _ = evaluate(objective, dirty, batch, rows)
    assert clean_loss == dirty_loss
    for name, gradient in clean_gradients.items():
        assert gradient[~masked].equal(dirty_gradients[name][~masked])
        assert dirty_gradients[name][masked].eq(0).all()


@pytest.mark.parametrize("name", ["ppo", "gspo", "geo_mean", "kto"])
def test_a_dead_row_is_left_out_whatever_its_columns_hold(name: str) -> None:
    """A4, N2: it is in no denominator and in no metric."""
    entry = LOSSES.get(name) or PREFERENCES[name]
    batch = ragged()
    rows = batch.sequences.with_columns(
        advantage=torch.tensor([0.5, -1.0, float("nan"), 2.0]),
        chosen=torch.tensor([True, False, True, False]),
        reference_point=torch.zeros(4),
    )
    batch = Batch.of(rows, dict(batch.tokens))
    objective = Objective(
        terms=(term_of(entry, Mode.SEQ_MEAN_TOKEN_MEAN),), proximal=Proximal.STORED
    )
    columns = columns_of(batch, seed=5)
    whole, _, metrics = evaluate(objective, columns, batch, [torch.arange(4)])
    alive = torch.tensor([0, 1, 3])
    left = batch.select(alive)
    alone, _, same = evaluate(
        objective, part_of(columns, batch, alive), left, [torch.arange(len(left))]
    )
    assert whole == pytest.approx(alone)
    assert metrics == pytest.approx(same)


def ragged() -> Batch:
    """Four rows, 12 tokens; the third row trains nothing."""
    length = torch.tensor([4, 3, 2, 3])
    trained = torch.tensor([0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0]).bool()
    owner = torch.repeat_interleave(length)
    sequences = Sequences.of(
        {
            "id": torch.tensor([3, 1, 2, 9]),
            "group": torch.tensor([0, 0, 1, 1]),
            "length": length,
            "trained": torch.bincount(owner[trained], minlength=4),
            "advantage": torch.tensor([1.0, -1.0, 0.5, 2.0]),
        }
    )
    return Batch.of(sequences, {"token": torch.zeros(12).long(), "trained": trained})


def test_rows_without_weights_are_an_error() -> None:
    """A7: there is no local fallback."""
    batch = ragged()
    objective = Objective(terms=(term_of(LOSSES["ppo"], Mode.TOKEN_MEAN),))
    with pytest.raises(MissingCount, match=r"Objective\.weigh"):
        objective.evaluate(columns_of(batch, 0), batch.sequences)


def test_a_column_that_nobody_provides_is_named() -> None:
    """The objective says which columns it needs."""
    batch = ragged()
    objective = Objective(terms=(Term(name="pull", loss=Loss(function=kl_term)),))
    columns = columns_of(batch, 0)
    del columns["reference"]
    with pytest.raises(WrongColumn, match="'pull' needs the token columns reference"):
        objective.evaluate(columns, objective.weigh(batch.sequences))


def test_each_term_has_its_own_mask_and_its_own_denominator() -> None:
    """A6, X6: an observed token does not dilute the trained ones."""
    batch = ragged()
    observation = ~batch.tokens["trained"]
    counts = torch.bincount(batch.owner[observation], minlength=4)
    columns = columns_of(batch, 1) | {"observation": observation}
    terms = (
        Term(name="answer", loss=Loss(function=nll)),
        Term(
            name="world",
            loss=Loss(function=nll),
            mask="observation",
            count="actions",
            coefficient=0.5,
        ),
    )
    objective = Objective(terms=terms)
    step = objective.weigh(batch.sequences.with_columns(actions=counts))
    loss, metrics = objective.evaluate(columns, step)
    policy = columns["policy"].detach()
    answer, world = -policy[~observation].mean().item(), -policy[observation].mean().item()
    assert loss.item() == pytest.approx(answer + 0.5 * world)
    assert values(metrics)["loss/answer"] == pytest.approx(answer)
    assert values(metrics)["loss/world"] == pytest.approx(world)


def test_where_old_comes_from_is_a_setting() -> None:
    """C4: with the current policy as old the ratio is exactly 1; bypass reads the behaviour."""
    batch = ragged()
    columns = columns_of(batch, 2)
    term = Term(name="policy", loss=Loss(function=ppo, measures=ppo_measures))
    ratios = {}
    for proximal in Proximal:
        objective = Objective(terms=(term,), proximal=proximal)
        _, metrics = objective.evaluate(columns, objective.weigh(batch.sequences))
        ratios[proximal] = values(metrics)["policy/ratio"]
        needed = objective.token_columns
        assert ("old" in needed) is (proximal is Proximal.STORED)
        assert ("behaviour" in needed) is (proximal is Proximal.BEHAVIOUR)
    kept = batch.tokens["trained"]
    gap = (columns["policy"] - columns["behaviour"])[kept].exp().mean().item()
    assert ratios[Proximal.CURRENT] == 1.0
    assert ratios[Proximal.BEHAVIOUR] == pytest.approx(gap)


def test_weights_change_the_numerator_only_and_carry_no_gradient() -> None:
    """C5, C6: a truncated weight multiplies each token's pull; its own metrics say how much."""
    batch = ragged()
    columns = columns_of(batch, 4)
    kept = batch.tokens["trained"]
    factor = Factor(name="weight", function=truncated, options={"bound": 1.5})
    term = Term(name="policy", loss=Loss(function=ppo), factors=(factor,))
    objective = Objective(terms=(term,))
    loss, metrics = objective.evaluate(columns, objective.weigh(batch.sequences))
    loss.backward()
    weight = (columns["policy"].detach() - columns["behaviour"])[kept].exp().clamp(max=1.5)
    gradient = columns["policy"].grad
    assert gradient is not None
    close(gradient[kept], -weight * columns["advantage"][kept] / kept.sum())
    assert values(metrics)["policy/weight/mean"] == pytest.approx(weight.mean().item())
    assert values(metrics)["policy/weight/zero_share"] == 0.0


def test_a_factor_that_forgot_to_stop_its_gradient_is_stopped() -> None:
    """C5: the objective sees to it, whoever wrote the function."""

    def careless(*, policy_T: Tensor) -> Tensor:
        return policy_T

    batch = ragged()
    columns = columns_of(batch, 8)
    kept = batch.tokens["trained"]
    factor = Factor(name="careless", function=careless)
    objective = Objective(terms=(Term(name="nll", loss=Loss(function=nll), factors=(factor,)),))
    objective.evaluate(columns, objective.weigh(batch.sequences))[0].backward()
    gradient = columns["policy"].grad
    assert gradient is not None
    close(gradient[kept], -columns["policy"].detach()[kept] / kept.sum())


def test_a_gate_that_reads_the_policy_does_not_move_the_denominator() -> None:
    """X6: the dropped row still counts among the live ones."""
    batch = ragged()
    columns = columns_of(batch, 6)
    behaviour = columns["policy"].detach() + 1.0
    gate = Factor(name="gate", function=off_policy_sequence, options={"delta": 0.5})
    terms = [
        Term(
            name="policy",
            loss=Loss(function=gspo, unit=Unit.SEQUENCE),
            mode=Mode.SEQ_MEAN_TOKEN_MEAN,
            factors=factors,
        )
        for factors in ((), (gate,))
    ]
    losses = []
    for term in terms:
        objective = Objective(terms=(term,))
        step = objective.weigh(batch.sequences)
        losses.append(objective.evaluate(columns | {"behaviour": behaviour}, step)[0].item())
    # Advantages 1, -1, dead, 2 at ratio 1: the gate takes out the second of three live rows.
    assert losses == pytest.approx([-(1 - 1 + 2) / 3, -(1 + 2) / 3])


def test_pairs_take_no_weights_and_an_objective_has_a_term() -> None:
    """M2: nothing is accepted and then ignored."""
    factor = Factor(name="weight", function=truncated)
    with pytest.raises(WrongValue, match="pairs"):
        Term(
            name="dpo",
            loss=Loss(function=PREFERENCES["dpo"].function, unit=Unit.PAIR),
            factors=(factor,),
        )
    with pytest.raises(ValueError, match="terms"):
        Objective(terms=())


@pytest.mark.parametrize(
    ("entry", "factors", "separable"),
    [
        (LOSSES["ppo"], (), True),
        (LOSSES["gspo"], (), False),
        (LOSSES["gspo_token"], (), False),
        (LOSSES["vespo"], (), False),
        (LOSSES["ppo"], (WEIGHTS["stored"],), True),
        (LOSSES["ppo"], (WEIGHTS["truncated"],), False),
    ],
)
def test_separable_means_that_no_token_reads_another(
    entry: Entry, factors: tuple[Entry, ...], separable: bool
) -> None:
    """What lets a head make loss and gradient chunk by chunk."""
    term = term_of(entry, Mode.SEQ_MEAN_TOKEN_MEAN, *factors)
    assert Objective(terms=(term,)).separable is separable


def test_head_statistics_are_asked_from_the_model_and_not_from_the_store() -> None:
    """Y11."""
    terms = tuple(
        term_of(entry, Mode.TOKEN_MEAN)
        for entry in (LOSSES["ppo"], TERMS["entropy"], DISTILLATIONS["forward_kl"])
    )
    objective = Objective(terms=terms, proximal=Proximal.STORED)
    assert objective.statistics == {"policy", "entropy", "policy_topk"}
    assert objective.token_columns == {
        "old", "advantage", "teacher_topk", "teacher_ids", "trained",
    }  # fmt: skip
