"""Multi-token heads are trained by something, and only where they can be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexpo.infrastructure.config.check import problems
from hexpo.infrastructure.config.load import Resolved
from hexpo.infrastructure.plan import plan

Load = Callable[..., Resolved]
TERM = "algorithm.terms=[{name: mtp, loss: mtp, coefficient: 0.1}]"
DEPTHS = "training.options.mtp_depths"


def found(resolve: Load, *overrides: str) -> dict[str, str]:
    """Messages by key."""
    return {problem.key: problem.message for problem in problems(resolve(*overrides).config)}


def test_heads_with_a_term_that_trains_them_are_sound(resolve: Load) -> None:
    """M3."""
    assert found(resolve, TERM, f"{DEPTHS}=2") == {}


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ((TERM,), "algorithm.terms[0].loss.name", "set training.options.mtp_depths to 1 or more"),
        ((f"{DEPTHS}=1",), DEPTHS, "add {name: mtp, loss: mtp} to algorithm.terms"),
        ((f"{DEPTHS}=1", "algorithm.loss=sft"), DEPTHS, "no further terms"),
        (
            (TERM, f"{DEPTHS}=1", "training.ranks=2", "rollout.replicas=1"),
            "training.options",
            "one process",
        ),
        ((TERM, f"{DEPTHS}=1", "training.options.packing=padded"), "training.options", "padded"),
        (
            ("models=[{role: critic, options: {mtp_depths: 1}}]",),
            "models[0].options.mtp_depths",
            "the policy may",
        ),
    ],
)
def test_heads_that_nothing_trains_or_that_cannot_be_are_refused(
    resolve: Load, overrides: tuple[str, ...], key: str, says: str
) -> None:
    """M2, M3."""
    assert says in found(resolve, *overrides)[key]


def test_the_memory_of_heads_is_in_the_plan(resolve: Load) -> None:
    """I5: a depth is a layer (16 x 4 x 12 attention, 3 x 16 x 32 gate weights) and a projection of
    2 x 16 to 16; fp32 weights, gradients and two moments are 16 bytes each."""
    made = plan(resolve(TERM, f"{DEPTHS}=2", "model.precision=fp32"))
    (why,) = [part.why for part in made.memory if part.name == "multi-token heads"]
    assert why.startswith(f"{2 * (16 * 4 * 12 + 3 * 16 * 32 + 2 * 16 * 16):,} weights")
    assert not [p for p in plan(resolve()).memory if p.name == "multi-token heads"]
