"""The simplest episode: one question, one answer."""

from __future__ import annotations

import attrs
import torch

from hexpo.application.continuing import complete
from hexpo.application.ports.rollout import Generation, Request, RolloutEngine
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.sampling import Sampling
from hexpo.domain.seeds import seed_for
from hexpo.domain.trajectory import Ticket, Trajectory


@attrs.frozen(kw_only=True)
class SingleTurn:
    """Renders a prompt, asks for one answer, and keeps its ids as they are.

    Every answer has a seed of its own, made from the run's seed, `stream` and its ticket: the
    order of events changes none of them. The samples of a ticket share a session, so that an
    engine may compute their prompt once.
    """

    rollout: RolloutEngine
    tokenizer: Tokenizer
    sampling: Sampling
    seed: int
    stream: str = "train"
    """Separates the random numbers of training, evaluation and chat."""

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        """Play one sample of the ticket."""
        prompt = self.tokenizer.render(ticket.prompt.messages)
        # Evaluations ask the same prompts again and again: by the prompt's id their randomness is
        # the same each time, so that two evaluations differ by the weights only.
        name = ticket.number if self.stream == "train" else ticket.prompt.id
        generation = await complete(
            self.rollout,
            Request(
                id=f"{self.stream}.{ticket.number}.{sample}",
                prompt=prompt,
                sampling=self.sampling,
                seed=seed_for(self.seed, self.stream, name, sample),
                session=f"{self.stream}.{ticket.number}",
            ),
        )
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
    version_T = torch.zeros(total, dtype=torch.int64)
    for span in generation.spans:
        version_T[before + span.start : before + span.end] = span.version
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
        version=version_T,
        stop=generation.stop,
        text=tokenizer.decode(answer.tolist()),
    )
