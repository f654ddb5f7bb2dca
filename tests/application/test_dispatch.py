"""What a replica's answers say about it, in virtual time."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexpo.adapters.simulated.clock import run
from hexpo.adapters.simulated.costs import RolloutSpeed
from hexpo.adapters.simulated.fleet import FleetSettings, SimulatedFleet
from hexpo.application.dispatch import NONSENSE, Desk
from hexpo.application.membership import Member
from hexpo.application.ports.rollout import Generation, Request, Span
from hexpo.application.soundness import flaw_of_piece
from hexpo.domain.errors import EngineFailed
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import StopReason

VOCABULARY = 8
GOOD = torch.tensor([0, 7])
BAD = (torch.tensor([0, 8]), torch.tensor([-1, 7]))


def piece(tokens: Tensor, logprobs: int = 2) -> Generation:
    spans = (Span(0, len(tokens), 0),)
    return Generation(
        tokens=tokens, logprobs=torch.zeros(logprobs), spans=spans, stop=StopReason.STOP
    )


class Scripted(SimulatedFleet):
    """Gives these answers, one after the other."""

    def __init__(self, answers: list[Generation]) -> None:
        super().__init__(
            FleetSettings(speed=RolloutSpeed(token_seconds=1.0, request_seconds=0.0, slots=1)),
            lambda _: 1,
        )
        self._answers = answers

    async def generate(self, request: Request) -> Generation:
        return self._answers.pop(0)


@given(st.lists(st.booleans(), max_size=30))
def test_a_member_is_given_up_when_three_answers_in_a_row_can_be_none(good: list[bool]) -> None:
    """O16: not for fewer, and a good one between them forgives those before; told once a row."""
    answers = [piece(GOOD if one else BAD[place % 2]) for place, one in enumerate(good)]
    told: list[str] = []
    wanted = sum(
        len(list(run_)) >= NONSENSE for is_good, run_ in itertools.groupby(good) if not is_good
    )

    async def ask_all() -> None:
        desk = Desk(on_death=lambda _, error: told.append(str(error)), vocabulary=VOCABULARY)
        desk.open(Member("one", Scripted(answers.copy())))
        for number, answer in enumerate(answers):
            request = Request(
                id=str(number), prompt=(1,), sampling=Sampling(max_new_tokens=4), seed=number
            )
            assert await desk.answer(request) is answer

    run(ask_all())
    assert len(told) == wanted
    assert all("one talks nonsense" in error for error in told)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (piece(GOOD), None),
        (piece(torch.zeros(0, dtype=torch.int64), 0), None),
        (piece(BAD[0]), "ids from 0 to 8, and there are 8 ids"),
        (piece(BAD[1]), "ids from -1 to 7"),
        (piece(GOOD, logprobs=1), "different lengths"),
    ],
)
def test_a_piece_of_an_answer_says_what_is_wrong_with_it(
    answer: Generation, says: str | None
) -> None:
    """B7: ids outside the vocabulary, and columns of different lengths; nothing at all may be."""
    flaw = flaw_of_piece(answer, vocabulary=VOCABULARY)
    assert (flaw is None) if says is None else (says in str(flaw))
    assert flaw_of_piece(piece(BAD[0])) is None, "without a vocabulary any id may be"


def test_who_talks_nonsense_is_told_as_a_failed_engine() -> None:
    """F5: what fences it is the error of an engine, with the last flaw in it."""
    told: list[BaseException] = []

    async def ask_all() -> None:
        desk = Desk(on_death=lambda _, error: told.append(error), vocabulary=VOCABULARY)
        desk.open(Member("one", Scripted([piece(BAD[0])] * NONSENSE)))
        for _ in range(NONSENSE):
            await desk.answer(
                Request(id="r", prompt=(1,), sampling=Sampling(max_new_tokens=4), seed=1)
            )

    run(ask_all())
    assert isinstance(told[0], EngineFailed)
    assert "ids from 0 to 8" in str(told[0])
