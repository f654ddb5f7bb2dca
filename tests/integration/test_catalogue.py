"""Every name of the catalogues trains through the real loop, or is refused for a known reason."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.domain.advantages.catalogue import ADVANTAGES
from hexpo.domain.catalogue import Entry
from hexpo.domain.correction.catalogue import WEIGHTS
from hexpo.domain.distillation.catalogue import DISTILLATIONS
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.estimators import Estimator
from hexpo.domain.kl.catalogue import KL_ESTIMATORS
from hexpo.domain.losses.catalogue import LOSSES, TERMS
from hexpo.domain.masks.catalogue import GATES, MASKS
from hexpo.domain.masks.stored import Narrowing
from hexpo.domain.objective import Factor, Loss, Objective
from hexpo.domain.signature import needs_of
from hexpo.domain.trajectory import Scored, Trajectory
from hexpo.entrypoints.library import Run, build

ALL: Mapping[str, Mapping[str, Entry]] = {
    "advantage": ADVANTAGES,
    "policy loss": LOSSES,
    "term": {**TERMS, **DISTILLATIONS, **KL_ESTIMATORS},
    "correction": {**WEIGHTS, **MASKS, **GATES},
}

WITHOUT_PROVIDER: Mapping[tuple[str, str], str] = {
    ("term", "value"): "a policy has a distribution in its place",
    ("term", "observation_nll"): "episodes here have one turn",
}
"""What a run cannot provide yet. A line that is no longer true fails its test."""

NAMES = [(kind, name) for kind, entries in ALL.items() for name in entries]
TRAINED = [each for each in NAMES if each not in WITHOUT_PROVIDER]
OPTIONS: Mapping[str, Mapping[str, Any]] = {"gdpo": {"components": ["vowels", "length"]}}


class Spy:
    """A function with the same columns that remembers the names of those it was given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, list[set[str]]()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def __call__(self, **arguments: Any) -> Any:
        self.calls.append({name for name in arguments if name.endswith(("_T", "_S"))})
        return self.function(**arguments)

    @property
    def was_called(self) -> bool:
        """With all of its columns."""
        needs = needs_of(self.function)
        columns = {f"{name}_T" for name in needs.tokens} | {f"{name}_S" for name in needs.sequences}
        return bool(self.calls) and all(call == columns for call in self.calls)


def overrides(kind: str, name: str, teacher: Path) -> list[str]:
    """A run that uses the name, and the models that it asks for."""
    named = {"name": name, "options": dict(OPTIONS.get(name, {}))}
    entry = ALL[kind][name]
    values: dict[str, Any] = {
        "advantage": {"algorithm.advantage": named},
        "policy loss": {"algorithm.loss": named, "training.epochs_per_batch": 2},
        "term": {"algorithm.terms": [{"name": "further", "loss": named, "coefficient": 0.1}]},
        "correction": {"algorithm.correction": [named], "training.updates_per_batch": 2},
    }[kind]
    if "multi-token head" in entry.needs:
        values["training.options.mtp_depths"] = 2
    if "critic" in entry.needs:
        values["models"] = [{"role": "critic", "options": {"learning_rate": 1e-2}}]
    if "teacher" in entry.needs:
        values["models"] = [{"role": "teacher", "path": str(teacher)}]
    return [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in values.items()
    ]


def spy_on(run: Run, kind: str, name: str) -> Spy:
    """Put a spy in the function's place."""
    container, spy = run.container, Spy(ALL[kind][name].function)
    if kind == "advantage":
        *before, last = container.estimators()
        spy = Spy(last.function)
        container.estimators.override((*before, attrs.evolve(last, function=spy)))
        return spy
    if kind == "correction" and name in MASKS:
        narrowing = container.choices()[0].function
        assert isinstance(narrowing, Narrowing)
        masks = tuple(attrs.evolve(mask, function=spy) for mask in narrowing.masks)
        container.choices.override((Estimator(function=Narrowing(masks=masks)),))
        return spy
    objective: Objective = container.objective()
    terms = list(objective.terms)
    place = next(
        i
        for i, term in enumerate(terms)
        if term.name == ("further" if kind == "term" else "policy")
    )
    if kind == "correction":
        factor: Factor = attrs.evolve(terms[place].factors[0], function=spy)
        terms[place] = attrs.evolve(terms[place], factors=(factor,))
    else:
        loss: Loss = attrs.evolve(terms[place].loss, function=spy)
        terms[place] = attrs.evolve(terms[place], loss=loss)
    container.objective.override(attrs.evolve(objective, terms=tuple(terms)))
    return spy


def score(row: Trajectory) -> Scored:
    """Some number that differs between answers, in two parts."""
    total = sum(row.tokens.tolist())
    vowels, length = total % 7 / 7, total % 3 / 3
    return Scored(value=vowels + length, components={"vowels": vowels, "length": length})


@pytest.mark.parametrize(("kind", "name"), TRAINED, ids=[f"{k}-{n}" for k, n in TRAINED])
def test_every_algorithm_trains_through_the_loop(
    tiny: dict[str, Any], other_model: Path, kind: str, name: str
) -> None:
    """M2: what is accepted is used; the function gets its columns, and weights change."""
    run = build(tiny, *overrides(kind, name, other_model))
    run.container.reward.override(SimulatedReward(score))
    spy = spy_on(run, kind, name)
    before = run.container.policy().digest()
    report = run.train()
    assert report.finished
    assert spy.was_called
    assert run.container.policy().digest() != before
    assert all(math.isfinite(value) for row in report.history for value in row.values())


@pytest.mark.parametrize(
    ("kind", "name"), list(WITHOUT_PROVIDER), ids=[f"{k}-{n}" for k, n in WITHOUT_PROVIDER]
)
def test_what_nothing_provides_is_refused_before_anything_loads(
    tiny: dict[str, Any], other_model: Path, kind: str, name: str
) -> None:
    """M2, M3: and the list of what is refused is exact."""
    with pytest.raises(ConfigurationError) as caught:
        build(tiny, *overrides(kind, name, other_model))
    assert WITHOUT_PROVIDER[kind, name] in str(caught.value)
    assert "which nothing in this run provides" in str(caught.value)
