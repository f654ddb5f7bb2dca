"""A run is killed wherever it may be: not at drawn moments, at every one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from hexpo.application.checkpointing import Progress
from hexpo.application.schedule import RunReport
from hexpo.entrypoints.testing.broken import Broken
from hexpo.entrypoints.testing.explorer import World, build, check
from hexpo.entrypoints.testing.scenarios import Interruption, Scenario
from hexpo.entrypoints.testing.worlds import Folders

SCENARIO = Scenario(
    seed=1,
    samples=1,
    steps=3,
    staleness=1.0,
    save_every=1,
    tail=0.5,
    grade_seconds=0.2,
    whole=False,
    interruptions=(Interruption(kind="crash", after=1e4),),
)
"""The crash comes earlier, by `Killing`."""


class Killing:
    """Builds worlds of which the first is killed after so many turns of its event loop."""

    def __init__(self, turns: int) -> None:
        self._left, self.steps = turns, list[int]()

    def __call__(self, scenario: Scenario, store: Folders) -> World:
        world = build(scenario, store)
        trainer: Any = world.trainer
        trainer.run = self._watched(trainer.run, world)
        return world

    def _watched(self, run: Callable[[], Any], world: World) -> Callable[[], Any]:
        async def watched() -> RunReport:
            if self.steps:  # the one before was killed
                self.steps.append(0)
                report: RunReport = await run()
                self.steps[-1] = world.tracker.begun[0]
                return report
            self.steps.append(0)
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            turn: Any = loop
            once = turn._run_once

            def counted() -> None:
                self._left -= 1
                if self._left == 0 and task is not None:
                    task.cancel()
                once()

            turn._run_once = counted
            report = await run()
            return report

        return watched

    @property
    def was_late(self) -> bool:
        """The run had ended."""
        return self._left > 0


def killed_everywhere() -> set[int]:
    """Kill the run at each turn of its loop. Returns: steps at which it went on."""
    found = set[int]()
    for turns in range(1, 10_000):
        killing = Killing(turns)
        check(attrs.evolve(SCENARIO), killing)
        if killing.was_late:
            return found
        found.add(killing.steps[-1])
    raise AssertionError("the run has no end")


def test_a_run_killed_at_any_turn_of_its_loop_trains_each_prompt_once() -> None:
    """H1, H3, F2: every promise is checked on each of them, and it goes on from every step."""
    assert killed_everywhere() == {0, 1, 2, 3}


def test_a_checkpoint_without_what_is_in_flight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fail."""
    whole = Progress.of

    def without(*arguments: Any) -> Progress:
        return attrs.evolve(whole(*arguments), in_flight=())

    monkeypatch.setattr(Progress, "of", staticmethod(without))
    with pytest.raises(Broken):
        killed_everywhere()
