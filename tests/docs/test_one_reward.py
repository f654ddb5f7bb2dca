"""The page that follows one reward to its gradient is what happens."""

from __future__ import annotations

import re
import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hexpo.entrypoints.library import build
from hexpo.infrastructure.config.layers import merge, read

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "one-reward.md").read_text()
STOPS = re.findall(r"^\| \d+ \| .*? \| `(\S+\.py)` `(\S+)` \|", PAGE, flags=re.MULTILINE)
CALL = tuple[tuple[str, str], dict[str, Any]]
"""A stop, and its arguments."""


@pytest.fixture
def walked(tmp_path: Path) -> list[CALL]:
    """All calls of the page's functions in a run of one step, in order."""
    model = runpy.run_path(str(EXAMPLES / "make_tiny.py"))["make"](tmp_path / "tiny")
    run = build(
        merge(
            read(EXAMPLES / "tiny.yaml"),
            {
                "run": {"folder": str(tmp_path / "runs"), "steps": 1},
                "model": {"path": str(model)},
                "data": {
                    "train": {"options": {"paths": [str(EXAMPLES / "tiny.jsonl")]}},
                    "evaluation": None,
                },
                "evaluation": {"every": 0},
                "checkpoint": {"every": 0, "export": False},
                "reward": {"options": {"function": f"{EXAMPLES / 'tiny_reward.py'}:reward"}},
            },
        )
    )
    calls: list[CALL] = []
    wanted = set(STOPS)

    def hear(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        module = str(frame.f_globals.get("__name__", "")).removeprefix("hexpo.")
        stop = (f"{module.replace('.', '/')}.py", frame.f_code.co_qualname)
        if stop in wanted:
            calls.append((stop, dict(frame.f_locals)))

    threading.setprofile(hear)
    sys.setprofile(hear)
    try:
        run.train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def of(calls: list[CALL], stop: str) -> Iterator[dict[str, Any]]:
    """Arguments of each call of a function."""
    return (arguments for (_, name), arguments in calls if name == stop)


def test_the_way_of_one_reward_is_as_the_page_says(walked: list[CALL]) -> None:
    """Every stop in the page's order, and one prompt seen at the stops that know it by name."""
    assert len(STOPS) == 27
    assert f"{len(STOPS)} stops, {PAGE.count('| port: ')} of them behind a port" in PAGE
    rest = iter(stop for stop, _ in walked)
    for stop in STOPS:
        assert stop in rest, f"{stop} is not called after the one before it"

    ticket = next(of(walked, "Player.play"))["ticket"]
    asked = {(one["ticket"].number, one["sample"]) for one in of(walked, "SingleTurn.run")}
    assert {(ticket.number, sample) for sample in range(ticket.samples)} <= asked
    graded = [one["rows"] for one in of(walked, "PooledReward.grade")]
    mine = next(rows for rows in graded if rows[0].group == ticket.number)
    (groups,) = [one["groups"] for one in of(walked, "assemble")]
    (group,) = [group for group in groups if group.ticket == ticket]
    assert [row.trajectory for row in group.rows] == list(mine)
    rewards = {row.trajectory.id: row.outcome.value for row in group.rows}

    *_, scored = of(walked, "grpo")  # its options were tried on nothing when the run was built
    of_mine_S = scored["group_S"] == ticket.number
    assert scored["score_S"][of_mine_S].tolist() == pytest.approx(list(rewards.values()))
    trained = {int(row) for one in of(walked, "FsdpEngine.accumulate") for row in one["rows"].ids}
    if len(set(rewards.values())) > 1:  # else its advantages are 0, and nothing of it is run
        assert trained & rewards.keys()
