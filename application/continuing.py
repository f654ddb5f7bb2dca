"""Answers that go on after a cut: what a weight update does to those that run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum

from hexpo.application.pieces import Pieces
from hexpo.application.ports.rollout import Generation, PauseMode, Request, RolloutEngine
from hexpo.domain.errors import NoProgress
from hexpo.domain.trajectory import StopReason

FRUITLESS = 8
"""Pieces without a token, one after the other, after which an answer is given up."""


class OnUpdate(Enum):
    """What a weight update does to running requests."""

    KEEP = "keep"
    """They wait inside the engine and go on there under the new weights."""
    CONTINUE = "continue"
    """They leave the engine with what they have, and are sent again for the rest: to any replica,
    and no cache can be stale."""
    DRAIN = "drain"
    """The update waits until they have ended: no answer is of two versions."""

    @property
    def pause_mode(self) -> PauseMode:
        """How the engine is asked to pause."""
        return _MODES[self]


_MODES: Mapping[OnUpdate, PauseMode] = {
    OnUpdate.KEEP: PauseMode.KEEP,
    OnUpdate.CONTINUE: PauseMode.ABORT,
    OnUpdate.DRAIN: PauseMode.DRAIN,
}


async def complete(
    rollout: RolloutEngine, request: Request, *, fruitless: int = FRUITLESS
) -> Generation:
    """One whole answer, however often the engine cuts it.

    A piece that comes back ABORTED is sent again: its ids behind the prompt, the rest of the
    budget, the same seed and session. Ids, log-probs and versions of all pieces are kept, so that
    each token is trained under the policy that sampled it (F8). Whoever wants an answer to end
    cancels this call; a deadline holds for the whole answer.

    Args: fruitless: so many pieces in a row may bring no token.
    Raises: NoProgress: more did. WrongValue, EngineFailed: as the engine says.
    """
    clock = asyncio.get_running_loop().time
    began, pieces, empty = clock(), Pieces(request), 0
    while True:
        rest = pieces.rest(seconds=clock() - began)
        if rest is None:
            return pieces.whole(StopReason.TIMEOUT)
        piece = await rollout.generate(rest)
        pieces.add(piece)
        if piece.stop is not StopReason.ABORTED:
            return pieces.whole()
        if pieces.room <= 0:
            return pieces.whole(StopReason.LENGTH)
        empty = 0 if len(piece.tokens) else empty + 1
        if empty > fruitless:
            raise NoProgress(
                f"request {request.id!r} was cut {empty} times in a row without a token, after"
                f" {pieces.tokens} tokens: weights come faster than the engine answers; raise"
                " asynchrony.max_staleness, give the rollout more slots, or keep requests over"
                " updates (asynchrony.on_update: keep)"
            )
