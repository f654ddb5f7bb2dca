"""Moves models on and off shared devices: the only caller of offload, onload, sleep and wake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs

from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.ports.training import TrainingEngine
from hexpo.application.tasks import first_failure
from hexpo.domain.errors import WrongValue
from hexpo.domain.schedule.residency import Phase, Resident, moves, present


@attrs.frozen(kw_only=True, eq=False)
class Mover:
    """How one model gives its memory back and takes it again."""

    out: Callable[[], Awaitable[None]]
    """Returns when the memory is free."""
    into: Callable[[], Awaitable[None]]

    @staticmethod
    def of_rollout(rollout: RolloutEngine) -> Mover:
        """By `sleep` and `wake`; its weights come with the next transfer, its cache with `resume`,
        after everything that has to go has gone (I3)."""
        return Mover(out=rollout.sleep, into=rollout.wake)

    @staticmethod
    def of_training(engine: TrainingEngine) -> Mover:
        """By `offload` and `onload`. Saving works while it is away."""
        return Mover(out=engine.offload, into=engine.onload)


class Turn:
    """A phase block that is open."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    async def become(self, phase: Phase) -> None:
        """Go on as another phase, without going back in between."""
        await self._residency.arrange(phase)


class Residency:
    """Moves models between phases. Those that share no devices with others never move.

    Failures: an engine that cannot move raises as it does; what was moved before stays counted, so
    that leaving the block still brings it back.
    """

    def __init__(
        self,
        residents: Sequence[Resident] = (),
        movers: Mapping[str, Mover] | None = None,
        *,
        here: Iterable[str] | None = None,
    ) -> None:
        """Args: residents: none: everything is separate, and nothing ever moves.
        movers: by the residents' names.
        here: who is on its devices already; None: who generates. `arrange` a phase first where
            everything was loaded at once.

        Raises: WrongValue: a model that has to move cannot.
        """
        self._residents, self._movers = tuple(residents), dict(movers or {})
        self._phase = Phase.GENERATE
        self._here = present(self._residents, self._phase) if here is None else frozenset(here)
        everywhere = [present(self._residents, phase) for phase in Phase]
        self._movable = frozenset[str]().union(*everywhere) - everywhere[0].intersection(
            *everywhere
        )
        if missing := sorted(self._movable.difference(self._movers)):
            raise WrongValue(
                f"{', '.join(missing)} must give way on shared devices and cannot: place them on"
                " devices of their own"
            )

    @property
    def present_phase(self) -> Phase:
        """What the devices are arranged for."""
        return self._phase

    @property
    def takes_turns(self) -> bool:
        """Whether anything ever has to move."""
        return bool(self._movable)

    @property
    def here(self) -> frozenset[str]:
        """Who is on its devices now."""
        return self._here

    @asynccontextmanager
    async def phase(self, phase: Phase) -> AsyncIterator[Turn]:
        """Arrange the devices for a phase; at the end, bring back what was moved for it, and
        nothing else (I4). Blocks may be nested; one block may become further phases.

        Raises: what an engine raises. If the block itself fails, its error is the one shown, and
            what fails on the way back is a note of it.
        """
        before, earlier = self._here, self._phase
        try:
            await self.arrange(phase)
            yield Turn(self)
        except BaseException as error:
            try:
                await self._change(before)
            except Exception as later:  # noqa: BLE001  the block's own error is the one to show (O5)
                error.add_note(f"and the devices could not be given back: {later}")
            self._phase = earlier
            raise
        await self._change(before)
        self._phase = earlier

    async def arrange(self, phase: Phase) -> None:
        """Move what the phase does not need out, then what it needs in."""
        await self._change(present(self._residents, phase))
        self._phase = phase

    async def _change(self, wanted: Iterable[str]) -> None:
        needed = moves(self._here, wanted)
        await self._each(needed.out, away=True)
        await self._each(needed.into, away=False)

    async def _each(self, names: Sequence[str], *, away: bool) -> None:
        """Side by side. Whoever moved is counted, whatever becomes of the others."""

        async def move(name: str) -> None:
            mover = self._movers[name]
            await (mover.out() if away else mover.into())
            self._here = self._here - {name} if away else self._here | {name}

        try:
            async with asyncio.TaskGroup() as tasks:
                for name in names:
                    tasks.create_task(move(name), name=name)
        except BaseExceptionGroup as group:
            raise first_failure(group) from None
