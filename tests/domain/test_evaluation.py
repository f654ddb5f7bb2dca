"""pass@k, mean and majority, by prompt id."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.errors import WrongValue
from hexpo.domain.evaluation import Answer, evaluate, majority, pass_at_k, powers_of_two
from hexpo.domain.metrics import merge, values


def answers(prompt: str, *scores: float | None, keys: str | None = None) -> list[Answer]:
    letters = keys or [None] * len(scores)
    return [
        Answer(prompt_id=prompt, score=score, key=key)
        for score, key in zip(scores, letters, strict=True)
    ]


def test_pass_at_k_draws_without_replacement() -> None:
    """O22: with replacement n 4, c 1, k 4 would be 0.683594."""
    assert [pass_at_k(answers=4, correct=1, k=k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert pass_at_k(answers=5, correct=2, k=3) == pytest.approx(0.9)
    assert pass_at_k(answers=1, correct=1, k=1) == 1.0
    assert pass_at_k(answers=1, correct=0, k=1) == 0.0


@given(right=st.lists(st.booleans(), min_size=1, max_size=7), data=st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_correct_answer(
    right: list[bool], data: st.DataObject
) -> None:
    """N4: against all subsets, one by one."""
    k = data.draw(st.integers(1, len(right)))
    draws = list(itertools.combinations(right, k))
    want = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k(answers=len(right), correct=sum(right), k=k) == pytest.approx(want)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_a_draw_that_does_not_exist_is_refused(n: int, c: int, k: int) -> None:
    """O22: never 0."""
    with pytest.raises(WrongValue, match=f"pass@{k} of {n} answers"):
        pass_at_k(answers=n, correct=c, k=k)


def test_pass_at_k_is_averaged_over_prompts_and_too_large_k_is_left_out() -> None:
    """O22: n 4, k 2, c 1, 4, 0 gives 0.5."""
    report = evaluate(
        [*answers("a", 1, 0, 0, 0), *answers("b", 1, 1, 1, 1), *answers("c", 0, 0, 0, 0)],
        ks=(2, 8),
    )
    assert report.pass_at(2) == 0.5
    assert report.pass_at(8) is None
    assert "pass@8" not in report.metrics()


def test_equal_texts_are_different_prompts() -> None:
    """O13: by id; merged by text mean@4 0.5 and pass 1.0 would be reported."""
    report = evaluate([*answers("s1", 1, 1), *answers("s2", 0, 0)])
    assert (report.mean, report.pass_at(2)) == (0.5, 0.5)
    assert [each.prompt_id for each in report.prompts] == ["s1", "s2"]
    interleaved = [answers("s1", 1)[0], answers("s2", 0)[0]] * 2
    assert evaluate(interleaved) == report


def test_an_answer_below_the_threshold_is_wrong_whatever_it_was_shaped_with() -> None:
    """O22, B10."""
    report = evaluate(answers("a", 0.2, 0.0, 0.99, 1.0))
    assert report.prompts[0].correct == 1
    assert evaluate(answers("a", 0.2, 0.99), correct_from=0.5).prompts[0].correct == 1


def test_an_unscored_answer_is_not_a_wrong_one() -> None:
    """B7, E3: it leaves its prompt's statistics and is counted."""
    report = evaluate([*answers("a", 1.0, None, 0.0, None), *answers("b", None)])
    first, second = report.prompts
    assert (first.scored, first.unscored, first.mean) == (2, 2, 0.5)
    assert first.pass_at == {1: 0.5, 2: 1.0}
    assert (second.mean, second.pass_at) == (None, {})
    assert report.mean == 0.5
    assert values(report.metrics()) == {
        "mean": 0.5,
        "prompts": 2,
        "answers": 2,
        "unscored": 3,
        "prompts_without_score": 1,
        "pass@1": 0.5,
        "pass@2": 1.0,
    }


def test_an_evaluation_without_a_score_is_an_error() -> None:
    """E3: not NaN, not 0."""
    for rows in ([], answers("a", None, None)):
        with pytest.raises(WrongValue, match="nothing to evaluate"):
            evaluate(rows)
    with pytest.raises(WrongValue, match="k must be at least 1"):
        evaluate(answers("a", 1), ks=(0,))


def test_the_mean_weighs_rows() -> None:
    """E3."""
    assert evaluate([*answers("a", 1, 1, 1), *answers("b", 0)]).mean == 0.75


@pytest.mark.parametrize(
    ("keys", "right", "want"),
    [
        ("aab", "yyn", 1.0),
        ("abb", "ynn", 0.0),
        ("ab", "yn", 0.5),
        ("abc", "ynn", 1 / 3),
        ("aabb", "yynn", 0.5),
        ("aab", "ynn", 0.5),
        ("a", "n", 0.0),
    ],
)
def test_tied_answers_share_the_vote(keys: str, right: str, want: float) -> None:
    """A tie counts as its share of correct ones, so that order decides nothing."""
    grades = [letter == "y" for letter in right]
    assert majority(keys, grades) == pytest.approx(want)
    assert majority(keys[::-1], grades[::-1]) == pytest.approx(want)


def test_majority_reads_the_first_k_comparable_answers() -> None:
    """An answer without a key has no vote, and k beyond the votes is left out."""
    report = evaluate(
        [
            Answer(prompt_id="p", score=score, key=key)
            for score, key in ((1, "a"), (0, None), (0, "b"), (0, "b"))
        ],
        ks=(1, 2, 3, 4),
    )
    assert report.prompts[0].majority_at == {1: 1.0, 2: 0.5, 3: 0.0}
    assert report.majority_at(4) is None
    assert report.majority_at(3) == 0.0
    with pytest.raises(WrongValue, match="2 keys, 1 grades"):
        majority("ab", [True])
    with pytest.raises(WrongValue, match="0 keys"):
        majority("", [])


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.one_of(st.none(), st.sampled_from((0.0, 0.5, 1.0)))),
        min_size=1,
    ).filter(lambda rows: any(score is not None for _, score in rows)),
    cut=st.integers(0, 4),
)
def test_evaluating_prompts_apart_gives_the_same_metrics(
    rows: list[tuple[int, float | None]], cut: int
) -> None:
    """E3, N1: any split of the prompts over ranks."""
    given_ = [Answer(prompt_id=str(prompt), score=score) for prompt, score in rows]
    parts = (
        [each for each in given_ if int(each.prompt_id) < cut],
        [each for each in given_ if int(each.prompt_id) >= cut],
    )
    merged = merge(
        evaluate(part).metrics() for part in parts if any(each.score is not None for each in part)
    )
    whole = evaluate(given_)
    lone = whole.metrics()
    assert merged["mean"].value == pytest.approx(whole.mean)
    for name in set(lone) - {"prompts", "unscored", "prompts_without_score"}:
        assert merged[name].value == pytest.approx(lone[name].value)


def test_the_usual_values_of_k_are_powers_of_two() -> None:
    """N4: n 1 works."""
    assert [powers_of_two(n) for n in (0, 1, 5, 8)] == [(), (1,), (1, 2, 4), (1, 2, 4, 8)]


def test_prompts_that_got_no_score_at_all_are_counted() -> None:
    """B7: two prompts of three have one; answers without a score are counted apart."""
    answers = [
        Answer(prompt_id=prompt, score=score)
        for prompt, score in (("a", 1.0), ("a", None), ("b", 0.0), ("c", None))
    ]
    measured = values(evaluate(answers).metrics())
    assert measured["prompts_without_score"] == 1
    assert measured["unscored"] == 2
    assert measured["prompts"] == 3
