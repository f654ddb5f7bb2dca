"""The simplest episode: one question, one answer."""

from __future__ import annotations

import attrs
import torch

from hexpo.application.agents.asking import request_of, versions_of
from hexpo.application.continuing import complete
from hexpo.application.ports.rollout import Generation, RolloutEngine
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import Ticket, Trajectory


@attrs.frozen(kw_only=True)
class SingleTurn:
    """Renders a prompt, asks for one answer, and keeps its ids as they are."""

    rollout: RolloutEngine
    tokenizer: Tokenizer
    sampling: Sampling
    seed: int
    stream: str = "train"
    """Separates the random numbers of training, evaluation and chat."""

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        """Play one sample of the ticket."""
        prompt = self.tokenizer.render(ticket.prompt.messages)
        request = request_of(
            ticket, sample, prompt, sampling=self.sampling, seed=self.seed, stream=self.stream
        )
        generation = await complete(self.rollout, request)
        return trajectory_of(ticket, sample, prompt, generation, self.tokenizer)


def trajectory_of(
    ticket: Ticket,
    sample: int,
    prompt: tuple[int, ...],
    generation: Generation,
    tokenizer: Tokenizer,
) -> Trajectory:
    """Prompt ids and one answer as a trajectory: only the answer's tokens are actions."""
    answer = generation.tokens
    before, total = len(prompt), len(prompt) + len(answer)
    action_T = torch.arange(total) >= before
    logprobs = generation.logprobs
    return Trajectory(
        id=ticket.number * ticket.samples + sample,
        group=ticket.number,
        prompt=ticket.prompt,
        tokens=torch.cat([torch.tensor(prompt, dtype=torch.int64), answer]),
        prompt_length=before,
        action=action_T,
        behaviour=torch.cat([logprobs.new_zeros(before), logprobs]),
        version=torch.cat([torch.zeros(before, dtype=torch.int64), versions_of(generation)]),
        stop=generation.stop,
        text=tokenizer.decode(answer.tolist()),
    )
