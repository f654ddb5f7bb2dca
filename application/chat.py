"""Use case: talking to a policy."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hexpo.application.ports.rollout import Request, RolloutEngine
from hexpo.application.ports.tokenizer import Tokenizer
from hexpo.domain.sampling import Sampling
from hexpo.domain.seeds import seed_for
from hexpo.domain.trajectory import Message


class Conversation:
    """A dialogue that remembers what was said."""

    def __init__(
        self, rollout: RolloutEngine, tokenizer: Tokenizer, *, sampling: Sampling, seed: int
    ) -> None:
        self._rollout, self._tokenizer = rollout, tokenizer
        self._sampling, self._seed = sampling, seed
        self.messages: list[Message] = []

    async def say(self, text: str) -> AsyncIterator[str]:
        """Answer a message piece by piece. Pieces are whole characters, and join to the answer."""
        self.messages.append(Message("user", text))
        turn = len(self.messages)
        request = Request(
            id=f"chat.{turn}",
            prompt=self._tokenizer.render(self.messages),
            sampling=self._sampling,
            seed=seed_for(self._seed, "chat", turn),
        )
        ids: list[int] = []
        shown = ""
        async for chunk in self._rollout.stream(request):
            ids += chunk.tokens
            whole = self._tokenizer.decode(ids)
            # An unfinished character decodes to the replacement mark: wait for the rest of it.
            if not whole.endswith("�") and len(whole) > len(shown):
                yield whole[len(shown) :]
                shown = whole
        whole = self._tokenizer.decode(ids)
        if len(whole) > len(shown):
            yield whole[len(shown) :]
        self.messages.append(Message("assistant", whole))
