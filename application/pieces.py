"""One answer in several pieces: what was sampled elsewhere or under an older version stays."""

from __future__ import annotations

import attrs
import torch

from hexpo.application.ports.rollout import Generation, Request, Span
from hexpo.domain.trajectory import StopReason


class Pieces:
    """Grows from the partial answers to one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._pieces: list[Generation] = []
        self._done = 0

    @property
    def tokens(self) -> int:
        """How many there are so far."""
        return self._done

    @property
    def room(self) -> int:
        """Tokens that the budget still allows."""
        return self._request.sampling.max_new_tokens - self._done

    def add(self, piece: Generation) -> None:
        """The next piece, in order."""
        self._pieces.append(piece)
        self._done += len(piece.tokens)

    def rest(self, *, seconds: float) -> Request | None:
        """What is still to be asked, `seconds` after the first piece was; None: its deadline has
        passed. The seed stays: an engine draws by the token's place in the whole answer."""
        request = self._request
        deadline = request.deadline_seconds
        if deadline is not None and seconds >= deadline:
            return None
        left = None if deadline is None else deadline - seconds
        if not self._done:
            return request if left == deadline else attrs.evolve(request, deadline_seconds=left)
        earlier = [token for piece in self._pieces for token in piece.tokens.tolist()]
        sampling = attrs.evolve(
            request.sampling,
            max_new_tokens=self.room,
            min_new_tokens=max(0, request.sampling.min_new_tokens - self._done),
        )
        return attrs.evolve(
            request,
            prompt=(*request.prompt, *earlier),
            given=request.given + self._done,
            sampling=sampling,
            deadline_seconds=left,
        )

    def whole(self, stop: StopReason | None = None) -> Generation:
        """All pieces as one answer. Args: stop: why it ended; None: as its last piece did."""
        if len(self._pieces) == 1 and stop is None:
            return self._pieces[0]
        spans: list[Span] = []
        start = 0
        for piece in self._pieces:
            for span in piece.spans:
                begin, end = start + span.start, start + span.end
                if spans and spans[-1].version == span.version:
                    begin = spans.pop().start
                spans.append(Span(begin, end, span.version))
            start += len(piece.tokens)
        nothing = torch.zeros(0, dtype=torch.int64)
        return Generation(
            tokens=torch.cat([nothing, *(piece.tokens for piece in self._pieces)]),
            logprobs=torch.cat([nothing.float(), *(piece.logprobs for piece in self._pieces)]),
            spans=tuple(spans),
            stop=stop or (self._pieces[-1].stop if self._pieces else StopReason.ABORTED),
        )
