"""Who is on the devices in which phase, and whether it fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexpo.domain.schedule.residency import (
    Part,
    Phase,
    Resident,
    demand,
    moves,
    overloads,
    present,
)
from hexpo.domain.schedule.switching import Cycle, should_train

GIB = 2**30


def crowd(rollout_group: str = "all") -> list[Resident]:
    return [
        Resident(
            name="rollout",
            part=Part.ROLLOUT,
            group=rollout_group,
            held=10 * GIB,
            working={Phase.GENERATE: 50 * GIB},
        ),
        Resident(name="policy", part=Part.POLICY, group="all", held=40 * GIB),
        Resident(name="reference", part=Part.SCORER, group="all", held=10 * GIB),
    ]


def test_models_of_one_group_take_turns_and_others_stay() -> None:
    """Y12: colocated and separate are one table with other groups."""
    assert present(crowd(), Phase.GENERATE) == {"rollout"}
    assert present(crowd(), Phase.SCORE) == {"policy", "reference"}
    assert present(crowd(), Phase.TRAIN) == {"policy"}
    assert present(crowd(), Phase.TRANSFER) == {"policy", "rollout"}
    alone = [one for one in crowd("elsewhere") if one.name != "reference"]
    assert all(present(alone, phase) == {"rollout", "policy"} for phase in Phase)


def test_what_does_not_fit_is_explained_with_its_addends() -> None:
    """`plan` names the phase, the sizes and a way out."""
    assert not overloads(crowd(), {"all": 60 * GIB})
    (found,) = overloads(crowd(), {"all": 55 * GIB})
    assert "cannot generate" in found
    assert "60.00 GiB are needed and 55.00 GiB are there" in found
    assert "rollout 10.00 GiB and 50.00 GiB to work" in found
    assert "give the rollout a smaller cache" in found
    assert demand(crowd(), Phase.TRANSFER, "all") == 50 * GIB
    assert all(found.count("None") == 0 for found in overloads(crowd(), {"all": 1}))


def test_the_way_out_depends_on_who_is_in_the_way() -> None:
    """`plan`: two models at a transfer can be parted, one cannot."""
    both = {phase: found for phase, found in _by_phase(crowd(), 45).items() if phase != "generate"}
    assert set(both) == {"transfer", "score"}
    assert "train and generate on separate devices" in both["transfer"]
    assert "use smaller micro-batches" in both["score"]
    alone = _by_phase([one for one in crowd("elsewhere") if one.part is Part.POLICY], 20)
    assert "use smaller micro-batches" in alone["transfer"]


def _by_phase(residents: list[Resident], gib: int) -> dict[str, str]:
    found = overloads(residents, {"all": gib * GIB})
    return {each.split("cannot ")[1].split(":")[0]: each for each in found}


@given(st.sampled_from(Phase), st.sampled_from(Phase))
def test_moves_lead_from_one_phase_to_the_other_and_touch_nothing_else(
    here: Phase, there: Phase
) -> None:
    """I4."""
    now, then = present(crowd(), here), present(crowd(), there)
    needed = moves(now, then)
    assert (now - set(needed.out)) | set(needed.into) == then
    assert set(needed.out) <= now
    assert not set(needed.into) & now


def cycle(**changes: float) -> Cycle:
    given_ = {"finished": 4, "wanted": 4, "running": 3, "tokens": 1000.0, "seconds": 10.0}
    return Cycle(**{**given_, "tokens_per_second": 50.0, "switch_seconds": 5.0, **changes})  # type: ignore[arg-type]


def test_training_begins_when_the_speed_has_fallen_to_the_cycles_average() -> None:
    """1000 tokens in 10 + 5 seconds are 66.7 a second."""
    assert should_train(cycle(tokens_per_second=66.0))
    assert not should_train(cycle(tokens_per_second=67.0))
    assert not should_train(cycle(finished=3, tokens_per_second=0.0))
    assert should_train(cycle(running=0, tokens_per_second=1e9))


def test_a_dearer_switch_makes_generation_go_on_for_longer() -> None:
    """The share of a switch falls with the length of its cycle."""
    assert should_train(cycle(switch_seconds=5.0, tokens_per_second=66.0))
    assert not should_train(cycle(switch_seconds=6.0, tokens_per_second=66.0))
