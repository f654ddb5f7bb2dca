"""What an evaluation says: pass@k, mean and majority, by prompt id.

All of it is about outcomes, never about shaped token rewards. An answer without a score is not a
wrong answer: it leaves its prompt's statistics and is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from hexpo.domain.errors import WrongValue
from hexpo.domain.metrics import Measure, mean_of, total


@attrs.frozen(kw_only=True)
class Answer:
    """One graded answer."""

    prompt_id: str
    """Its prompt, by id: equal texts are different prompts (O13)."""
    score: float | None
    """The outcome; None where the rollout or the grader failed."""
    key: str | None = None
    """What it answers, in a form that can be compared; majority votes go by it."""


@attrs.frozen(kw_only=True)
class PromptReport:
    """All answers to one prompt."""

    prompt_id: str
    scored: int
    unscored: int
    correct: int
    mean: float | None
    """Mean score; None where no answer has one."""
    pass_at: Mapping[int, float]
    """For each k up to `scored`: the chance that k answers drawn from these hold a correct one."""
    majority_at: Mapping[int, float]
    """For each k: whether the most frequent of the first k answers is correct."""


@attrs.frozen(kw_only=True)
class Report:
    """An evaluation. Build with `evaluate`."""

    prompts: tuple[PromptReport, ...]
    """In order of first appearance."""

    @property
    def mean(self) -> float:
        """Mean score over all scored answers: every row weighs the same (E3)."""
        scored = sum(each.scored for each in self.prompts)
        return sum(each.scored * (each.mean or 0.0) for each in self.prompts) / scored

    def pass_at(self, k: int) -> float | None:
        """Mean pass@k over the prompts with at least k scored answers; None where none has."""
        return _mean([each.pass_at[k] for each in self.prompts if k in each.pass_at])

    def majority_at(self, k: int) -> float | None:
        """Mean majority@k over the prompts with at least k comparable answers."""
        return _mean([each.majority_at[k] for each in self.prompts if k in each.majority_at])

    def metrics(self) -> dict[str, Measure]:
        """Means, each with its number of rows or prompts as weight, so that parts can be merged."""
        scored = sum(each.scored for each in self.prompts)
        metrics = {
            "mean": mean_of(sum(p.scored * (p.mean or 0.0) for p in self.prompts), scored),
            "prompts": total(len(self.prompts)),
            "answers": total(scored),
            "unscored": total(sum(each.unscored for each in self.prompts)),
            "prompts_without_score": total(sum(not each.scored for each in self.prompts)),
        }
        for name, by_k in (
            ("pass", [each.pass_at for each in self.prompts]),
            ("majority", [each.majority_at for each in self.prompts]),
        ):
            for k in sorted(set().union(*by_k)):
                values = [each[k] for each in by_k if k in each]
                metrics[f"{name}@{k}"] = mean_of(sum(values), len(values))
        return metrics


def pass_at_k(*, answers: int, correct: int, k: int) -> float:
    """Chance that k different answers out of these hold a correct one.

    1 - C(n - c, k) / C(n, k), exact in integers: unbiased, unlike drawing with replacement
    (Chen et al. 2021, 2107.03374).
    Raises: WrongValue: k is not in 1..n, or c not in 0..n.
    """
    if not 1 <= k <= answers or not 0 <= correct <= answers:
        raise WrongValue(
            f"pass@{k} of {answers} answers, {correct} of them correct, does not exist:"
            " k must lie in 1..answers, correct in 0..answers"
        )
    return 1 - math.comb(answers - correct, k) / math.comb(answers, k)


def majority(keys: Sequence[str], correct: Sequence[bool]) -> float:
    """Whether the most frequent answer is correct.

    Tied answers share the vote: the value is the mean over them, as if one were drawn. Answers of
    one key that were graded differently count with their share of correct ones.
    Raises: WrongValue: no answer, or unequal numbers of keys and grades.
    """
    if not keys or len(keys) != len(correct):
        raise WrongValue(f"a vote needs a grade an answer: {len(keys)} keys, {len(correct)} grades")
    votes, right = Counter(keys), Counter(k for k, good in zip(keys, correct, strict=True) if good)
    most = max(votes.values())
    tied = [key for key, number in votes.items() if number == most]
    return sum(right[key] / most for key in tied) / len(tied)


def powers_of_two(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the number of samples: the usual values of k."""
    return tuple(1 << place for place in range(samples.bit_length()))


def evaluate(
    answers: Iterable[Answer], *, ks: Sequence[int] | None = None, correct_from: float = 1.0
) -> Report:
    """Group answers by prompt id and report on each.

    Args: ks: values of k; one that exceeds a prompt's scored answers is left out there. Default:
            powers of two.
        correct_from: lowest score that counts as correct; an answer below it is wrong, whatever
            shaped rewards its tokens got.
    Raises: WrongValue: no answer has a score, so that there is nothing to report; or a k below 1.
    """
    if ks is not None and any(k < 1 for k in ks):
        raise WrongValue(f"k must be at least 1, got {list(ks)}")
    by_prompt: dict[str, list[Answer]] = {}
    for answer in answers:
        by_prompt.setdefault(answer.prompt_id, []).append(answer)
    prompts = [_report(name, rows, ks, correct_from) for name, rows in by_prompt.items()]
    if not any(each.scored for each in prompts):
        unscored = sum(each.unscored for each in prompts)
        raise WrongValue(
            f"nothing to evaluate: {len(prompts)} prompts have {unscored} answers and no score;"
            " see why rollouts or graders failed"
        )
    return Report(prompts=tuple(prompts))


def _report(
    prompt_id: str, rows: Sequence[Answer], ks: Sequence[int] | None, correct_from: float
) -> PromptReport:
    scores = [(row.score, row.key) for row in rows if row.score is not None]
    good = [score >= correct_from for score, _ in scores]
    keyed = [(key, right) for (_, key), right in zip(scores, good, strict=True) if key is not None]
    wanted = powers_of_two(len(scores)) if ks is None else ks
    first = {k: keyed[:k] for k in wanted if k <= len(keyed)}
    return PromptReport(
        prompt_id=prompt_id,
        scored=len(scores),
        unscored=len(rows) - len(scores),
        correct=sum(good),
        mean=_mean([score for score, _ in scores]),
        pass_at={
            k: pass_at_k(answers=len(scores), correct=sum(good), k=k)
            for k in wanted
            if k <= len(scores)
        },
        majority_at={
            k: majority([a for a, _ in some], [b for _, b in some]) for k, some in first.items()
        },
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
