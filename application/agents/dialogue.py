"""A conversation whose further questions are given: the policy answers each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from hexpo.application.agents.asking import request_of, versions_of
from hexpo.application.continuing import complete
from hexpo.application.ports.rollout import Generation, RolloutEngine
from hexpo.application.ports.tokenizer import Followed, TurnTokenizer
from hexpo.domain.errors import WrongValue
from hexpo.domain.sampling import Sampling
from hexpo.domain.trajectory import Message, Prompt, StopReason, Ticket, Trajectory


@attrs.frozen(kw_only=True)
class Dialogue:
    """Asks, and asks on: after each answer that ended by itself the row's next message follows.

    The budget `sampling.max_new_tokens` is that of all that stands behind the prompt. An answer
    that does not end by itself is the last one. The first answer is that of `SingleTurn`, bit for
    bit; graders see the text of the last.
    """

    rollout: RolloutEngine
    tokenizer: TurnTokenizer
    sampling: Sampling
    seed: int
    stream: str = "train"
    """Separates the random numbers of training, evaluation and chat."""
    field: str = "follow_ups"
    """Field of a row that holds its further messages."""
    weights: Mapping[str, float] = attrs.field(factory=dict)
    """What the words of each role count in a term on observations; others count nothing."""

    async def run(self, ticket: Ticket, sample: int) -> Trajectory:
        """Play one sample of the ticket. Raises WrongValue: the row's messages are none."""
        script = script_of(ticket.prompt, self.field)
        said = list(ticket.prompt.messages)
        episode = _Episode(self.tokenizer.render(said))
        answer = await self._ask(ticket, sample, 0, episode)
        stop = answer.stop
        for turn, message in enumerate(script, start=1):
            if stop is not StopReason.STOP:
                break
            ended = episode.ids[-1] in self.tokenizer.stop_ids
            followed = self.tokenizer.render_next(said, message, ended=ended)
            if self._room(episode) <= len(followed.ids):
                stop = StopReason.LENGTH
                break
            episode.observe(followed, self.weights.get(message.role, 0.0))
            said += [Message("assistant", self._text(answer)), message]
            answer = await self._ask(ticket, sample, turn, episode)
            stop = answer.stop
        return episode.trajectory(ticket, sample, stop=stop, text=self._text(answer))

    def _text(self, answer: Generation) -> str:
        return self.tokenizer.decode(answer.tokens.tolist())

    def _room(self, episode: _Episode) -> int:
        return self.sampling.max_new_tokens - episode.later

    async def _ask(self, ticket: Ticket, sample: int, turn: int, episode: _Episode) -> Generation:
        request = request_of(
            ticket,
            sample,
            tuple(episode.ids),
            sampling=attrs.evolve(self.sampling, max_new_tokens=self._room(episode)),
            seed=self.seed,
            stream=self.stream,
            turn=turn,
        )
        answer = await complete(self.rollout, request)
        episode.answer(answer)
        return answer


class _Episode:
    """The ids of a conversation as it grows, and whose they are."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids, self._before = list(prompt), len(prompt)
        nothing = torch.zeros(len(prompt))
        self._action, self._version = [nothing.bool()], [nothing.long()]
        self._behaviour, self._observation = [nothing], [nothing]

    @property
    def later(self) -> int:
        """Ids behind the prompt."""
        return len(self.ids) - self._before

    def observe(self, followed: Followed, weight: float) -> None:
        """Someone else's turn."""
        said_N = torch.tensor(followed.said, dtype=torch.bool)
        self.ids += followed.ids
        self._action.append(torch.zeros_like(said_N))
        self._behaviour.append(torch.zeros(len(said_N)))
        self._version.append(torch.zeros(len(said_N), dtype=torch.int64))
        self._observation.append(weight * said_N.float())

    def answer(self, answer: Generation) -> None:
        """The policy's turn."""
        self.ids += answer.tokens.tolist()
        self._action.append(torch.ones(len(answer.tokens), dtype=torch.bool))
        self._behaviour.append(answer.logprobs)
        self._version.append(versions_of(answer))
        self._observation.append(torch.zeros(len(answer.tokens)))

    def trajectory(self, ticket: Ticket, sample: int, *, stop: StopReason, text: str) -> Trajectory:
        """All turns as one row."""
        return Trajectory(
            id=ticket.number * ticket.samples + sample,
            group=ticket.number,
            prompt=ticket.prompt,
            tokens=torch.tensor(self.ids, dtype=torch.int64),
            prompt_length=self._before,
            action=torch.cat(self._action),
            behaviour=torch.cat(self._behaviour),
            version=torch.cat(self._version),
            observation=torch.cat(self._observation),
            stop=stop,
            text=text,
        )


def script_of(prompt: Prompt, field: str) -> list[Message]:
    """The further messages of a row. Raises WrongValue: its field holds something else."""
    given = prompt.extra.get(field)
    if given is None:
        return []
    if isinstance(given, Sequence) and not isinstance(given, str):
        messages = [_message(one) for one in given]
        if None not in messages:
            return [one for one in messages if one is not None]
    raise WrongValue(
        f"prompt {prompt.id!r}: {field} must be a list of texts or of {{role, content}}, none of"
        f" the role assistant; it is {given!r:.200}"
    )


def _message(given: Any) -> Message | None:
    match given:
        case str():
            return Message("user", given)
        case {"role": str() as role, "content": str() as content} if role != "assistant":
            return Message(role, content)
        case _:
            return None
