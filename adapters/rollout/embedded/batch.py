"""The synchronous half: one step of all running answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs
import torch

from hexpo.adapters.models.decode import Decoder, Feed, Lane, floors_of
from hexpo.adapters.models.kernels import Kernels
from hexpo.adapters.rollout.embedded.answer import Answer


@attrs.frozen
class Drawn:
    """A sampled token."""

    token: int
    logprob: float


@attrs.frozen(eq=False)
class _Kept:
    ids: Sequence[int]
    lane: Lane


class Batch:
    """Runs a decoder for whatever answers it is given. One thread at a time.

    What a session has computed last is kept, so that its next request starts from the longest
    common beginning.
    """

    def __init__(self, decoder: Decoder, kernels: Kernels, *, sessions: int) -> None:
        self._decoder, self._kernels, self._limit = decoder, kernels, sessions
        self._sessions: OrderedDict[str, _Kept] = OrderedDict()

    def step(self, answers: Sequence[Answer]) -> list[Drawn]:
        """Sample the next token of each answer, in order."""
        fresh = [answer for answer in answers if answer.lane is None]
        shared = self._admit(fresh)
        lanes = [(answer, answer.lane) for answer in answers if answer.lane is not None]
        logits_NV = self._decoder.feed(
            [Feed(lane, answer.ids[lane.length :]) for answer, lane in lanes]
        )
        for answer in fresh:
            if answer.request.session not in shared:
                self._keep(answer)
        device = logits_NV.device
        settings = [answer.request.sampling for answer in answers]
        tokens_N, logprobs_N = self._kernels.sample(
            logits_NV,
            torch.tensor([a.uniform for a in answers], dtype=torch.float64, device=device),
            torch.tensor([sampling.temperature for sampling in settings], device=device),
            floors_of(logits_NV, settings),
        )
        pairs = zip(tokens_N.tolist(), logprobs_N.tolist(), strict=True)
        return [Drawn(token, logprob) for token, logprob in pairs]

    def free(self, answer: Answer, *, keep: bool) -> None:
        """Forget an answer's cache; `keep` leaves it to its session."""
        if answer.lane is not None:
            if keep:
                self._keep(answer)
            self._decoder.close(answer.lane)
            answer.lane = None

    def refresh(self, answers: Sequence[Answer]) -> None:
        """Take over new weights; everything computed under the old ones is dropped."""
        for answer in answers:
            self.free(answer, keep=False)
        for kept in self._sessions.values():
            self._decoder.close(kept.lane)
        self._sessions.clear()
        self._decoder.refresh()

    def _admit(self, fresh: Sequence[Answer]) -> set[str]:
        """Lanes for new answers. What those of one session share is computed once, before, and
        kept: the names of such sessions."""
        leaders: dict[str, Answer] = {}
        followers = []
        for answer in fresh:
            session = answer.request.session
            if session and session in leaders:
                followers.append(answer)
                continue
            answer.lane = self._begin(answer)
            if session:
                leaders[session] = answer
        awaited = {answer.request.session for answer in followers}
        first = [leaders[session] for session in leaders if session in awaited]
        feeds = [
            Feed(answer.lane, answer.ids[answer.lane.length : -1])
            for answer in first
            if answer.lane is not None and answer.lane.length < len(answer.ids) - 1
        ]
        if feeds:
            self._decoder.prefill(feeds)
        for answer in first:
            self._keep(answer)
        for answer in followers:
            answer.lane = self._begin(answer)
        return awaited

    def _begin(self, answer: Answer) -> Lane:
        """A lane that holds the longest beginning its session knows, short of the last id."""
        kept = self._sessions.get(answer.request.session)
        common = 0
        if kept is not None:
            for a, b in zip(kept.ids, answer.ids[:-1], strict=False):
                if a != b:
                    break
                common += 1
        if kept is None or not common:
            return self._decoder.open()
        return self._decoder.fork(kept.lane, common)

    def _keep(self, answer: Answer) -> None:
        session, lane = answer.request.session, answer.lane
        if not session or lane is None:
            return
        old = self._sessions.pop(session, None)
        if old is not None:
            self._decoder.close(old.lane)
        fork = self._decoder.fork(lane, lane.length)
        self._sessions[session] = _Kept(answer.ids[: lane.length], fork)
        while len(self._sessions) > self._limit:
            self._decoder.close(self._sessions.popitem(last=False)[1].lane)
