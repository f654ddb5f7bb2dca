"""Lengths of simulated answers."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from hexpo.adapters.simulated.lengths import Lengths, LogNormal, Pareto, Quantile, measured
from hexpo.application.ports.rollout import Request
from hexpo.domain.errors import DataError, WrongValue
from hexpo.domain.sampling import Sampling
from hexpo.domain.seeds import seed_for


def requests(groups: int, samples: int = 16) -> list[Request]:
    return [
        Request(
            id=f"{group}.{sample}",
            prompt=(1,),
            seed=seed_for(0, group, sample),
            sampling=Sampling(),
            session=str(group),
        )
        for group in range(groups)
        for sample in range(samples)
    ]


@pytest.mark.parametrize(
    ("quantile", "median"),
    [(LogNormal(median=500, spread=0.8), 500.0), (Pareto(shortest=100, exponent=2), 100 * 2**0.5)],
)
@pytest.mark.parametrize("kinship", [0.0, 0.6])
def test_lengths_follow_their_distribution_whatever_prompts_have_in_common(
    quantile: Quantile, median: float, kinship: float
) -> None:
    """Median, mean and the share that is cut, over 32,000 requests of 2,000 prompts."""
    lengths = Lengths(quantile=quantile, longest=4_000, kinship=kinship)
    drawn = [lengths(request) for request in requests(2_000)]
    assert statistics.median(drawn) == pytest.approx(median, rel=0.04)
    assert statistics.fmean(drawn) == pytest.approx(lengths.mean(), rel=0.04)
    cut = sum(length == 4_000 for length in drawn) / len(drawn)
    expected = sum(quantile((p + 0.5) / 10_000) >= 4_000 for p in range(10_000)) / 10_000
    assert cut == pytest.approx(expected, abs=0.002)


def test_kin_answers_are_alike() -> None:
    """The variance within a prompt is 1 - kinship of the whole (on the normal scale)."""
    import math

    lengths = Lengths(quantile=LogNormal(median=1e6, spread=1.0), longest=10**12, kinship=0.6)
    logs = [math.log(lengths(request)) for request in requests(2_000)]
    groups = [logs[start : start + 16] for start in range(0, len(logs), 16)]
    within = statistics.fmean(statistics.variance(group) for group in groups)
    assert within == pytest.approx(0.4, rel=0.05)


def test_a_length_is_a_function_of_its_request() -> None:
    """No order of events changes one."""
    lengths = Lengths(quantile=LogNormal(median=500, spread=0.8), longest=4_000, kinship=0.3)
    asked = requests(3)
    assert [lengths(r) for r in asked] == [lengths(r) for r in reversed(asked)][::-1]


def test_lengths_come_from_a_file_of_numbers_or_from_a_runs_samples(tmp_path: Path) -> None:
    """A run's training samples count, its evaluations do not."""
    numbers = tmp_path / "numbers"
    numbers.write_text("30\n10\n\n20\n")
    assert measured(numbers).lengths == (10, 20, 30)
    samples = tmp_path / "samples.jsonl"
    rows = [
        {"phase": "evaluate/x", "tokens": [1] * 99, "prompt_length": 3},
        {"phase": "train", "tokens": [1] * 10, "prompt_length": 3},
        {"phase": "train", "tokens": [1] * 8, "prompt_length": 3},
    ]
    samples.write_text("\n".join(map(json.dumps, rows)))
    assert measured(samples).lengths == (5, 7)
    assert Lengths(quantile=measured(samples), longest=6)(requests(1)[0]) in (5, 6)


@pytest.mark.parametrize("text", ["", "many\n", '{"tokens": [1]}\n', "0\n", '"7"\n'])
def test_a_file_without_lengths_is_refused_by_line(tmp_path: Path, text: str) -> None:
    """L1: a message says where and what."""
    path = tmp_path / "lengths"
    path.write_text(text)
    with pytest.raises(DataError, match="lengths"):
        measured(path)
    with pytest.raises(DataError, match="cannot be read"):
        measured(tmp_path / "nothing")


def test_a_kinship_outside_its_range_is_refused() -> None:
    """Errors are typed."""
    with pytest.raises(WrongValue, match="kinship"):
        Lengths(quantile=Pareto(shortest=1, exponent=1), longest=9, kinship=1.5)
