"""Every name of the catalogues trains through the real loop, or is refused for a known reason."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

import hexpo.domain
from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.domain.algorithms import CATALOGUES
from hexpo.domain.catalogue import Entry
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.estimators import Estimator
from hexpo.domain.masks.stored import Covariant, Narrowing
from hexpo.domain.objective import Factor, Loss, Objective
from hexpo.domain.signature import needs_of
from hexpo.domain.trajectory import Scored, Trajectory
from hexpo.entrypoints.library import Run, build

NAMES = [(kind, name) for kind, entries in CATALOGUES.items() for name in entries]
"""Every algorithm that `hexpo algorithms` lists."""

VALUE = ("term", "value")
"""The one term of the catalogue that another model than the policy minimises: a critic."""

REFUSED: Mapping[tuple[str, str], str] = {
    ("further", "value"): "a policy has a distribution in its place",
}
"""Further terms of a policy that are refused."""

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "gdpo": {"components": ["vowels", "length"]},
    "overlong": {"maximum": 8, "buffer": 4},
    "adaptive_kl": {"target": 0.01, "horizon": 20},
    "adaptive_entropy": {"target": 9.0},
}
CHOSEN_FOR: Mapping[str, str] = {"top_covariance": "kl_cov", "drawn_covariance": "clip_cov"}
"""The policy loss that each choice is made for."""

OF_TERM = {"policy loss": "policy", "fit": "fit"} | dict.fromkeys(
    ("term", "KL estimator", "distillation", "further"), "further"
)
"""The term of the objective in which a loss of each kind stands."""


class Spy:
    """A function with the same columns that remembers the names of what it took and gave."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls = function, list[set[str]]()
        self.named = set[str]()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function)

    def __call__(self, **arguments: Any) -> Any:
        self.calls.append({name for name in arguments if name.endswith(("_T", "_S"))})
        made = self.function(**arguments)
        self.named |= set(made) if isinstance(made, Mapping) else set()
        return made

    @property
    def was_called(self) -> bool:
        """With all of its columns."""
        needs = needs_of(self.function)
        columns = {f"{name}_T" for name in needs.tokens} | {f"{name}_S" for name in needs.sequences}
        return bool(self.calls) and all(call == columns for call in self.calls)


def overrides(kind: str, name: str, teacher: Path, folder: Path) -> list[str]:
    """A run that uses the name, and the models that it asks for."""
    named = {"name": name, "options": dict(OPTIONS.get(name, {}))}
    further: dict[str, Any] = {
        "algorithm.terms": [{"name": "further", "loss": named, "coefficient": 0.1}]
    }
    correction: dict[str, Any] = {"algorithm.correction": [named], "training.updates_per_batch": 2}
    by_kind: Mapping[str, dict[str, Any]] = {
        "advantage": {"algorithm.advantage": named},
        "policy loss": {"algorithm.loss": named, "training.epochs_per_batch": 2},
        "term": further,
        "KL estimator": further,
        "distillation": further,
        "further": further,
        "fit": {"algorithm.loss": named, "data.train": judged_rows(folder)},
        "shaping": {"algorithm.shaping": [named]},
        "weight": correction,
        "mask": correction,
        "gate": correction,
        "choice": {"algorithm.loss": {"name": CHOSEN_FOR.get(name)}},
        "controller": {
            "algorithm.controllers": [named],
            "algorithm.kl": {"where": "loss", "coefficient": 0.1},
            "algorithm.entropy": 0.1,
        },
    }
    values = by_kind[kind]
    if (kind, name) == VALUE:
        values = {"algorithm.advantage": {"name": "gae"}}
    needs = CATALOGUES["term" if kind == "further" else kind][name].needs
    if "observation mask" in needs:
        values["rollout.agent"] = "dialogue"
        values["rollout.max_new_tokens"] = 32
        values["rollout.sampling"] = {"stop_ids": list(range(0, 260, 2))}
        values["data.train"] = asked_on(folder)
    if "multi-token head" in needs:
        values["training.options.mtp_depths"] = 2
    if "critic" in needs:
        values["models"] = [{"role": "critic", "options": {"learning_rate": 1e-2}}]
    if "teacher" in needs:
        values["models"] = [{"role": "teacher", "path": str(teacher)}]
    return [
        f"{key}={yaml.safe_dump(value, default_flow_style=True)}" for key, value in values.items()
    ]


def asked_on(folder: Path) -> dict[str, Any]:
    """Rows with a second question."""
    rows = [{"prompt": f"{n} + 1 = ?", "truth": "", "follow_ups": ["sure ?"]} for n in range(6)]
    (folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "options": {"paths": [str(folder / "talks.jsonl")]}}


def judged_rows(folder: Path) -> dict[str, Any]:
    """Rows that every loss of `fit` can read."""
    rows = [
        {
            "prompt": f"{n} + 1 = ?", "answer": str(n + n % 2), "label": bool(n % 2),
            "chosen": str(n + 1), "rejected": f"it is {n}",
        }
        for n in range(6)
    ]  # fmt: skip
    (folder / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "jsonl", "options": {"paths": [str(folder / "judged.jsonl")]}}


def spy_on(run: Run, kind: str, name: str) -> Spy | None:
    """Put a spy in the function's place; None where only metrics tell."""
    container, spy = run.container, Spy(CATALOGUES[kind][name].function)
    if kind in ("shaping", "controller") or (kind, name) == VALUE:
        return None
    if kind == "advantage":
        *before, last = container.estimators()
        spy = Spy(last.function)
        container.estimators.override((*before, attrs.evolve(last, function=spy)))
        return spy
    if kind == "mask":
        narrowing = container.choices()[0].function
        assert isinstance(narrowing, Narrowing)
        masks = tuple(attrs.evolve(mask, function=spy) for mask in narrowing.masks)
        container.choices.override((Estimator(function=Narrowing(masks=masks)),))
        return spy
    if kind == "choice":
        covariant = container.choices()[0].function
        assert isinstance(covariant, Covariant)
        assert covariant.function is spy.function
        watched = attrs.evolve(covariant, function=spy)
        container.choices.override((Estimator(function=watched),))
        return spy
    objective: Objective = container.objective()
    terms = list(objective.terms)
    place = [term.name for term in terms].index(OF_TERM.get(kind, "policy"))
    if kind in ("weight", "gate"):
        factor: Factor = attrs.evolve(terms[place].factors[0], function=spy)
        terms[place] = attrs.evolve(terms[place], factors=(factor,))
    else:
        loss: Loss = attrs.evolve(terms[place].loss, function=spy)
        if loss.measures is not None:
            loss = attrs.evolve(loss, measures=Spy(loss.measures))
        terms[place] = attrs.evolve(terms[place], loss=loss)
    container.objective.override(attrs.evolve(objective, terms=tuple(terms)))
    return spy


def metrics_of(run: Run, kind: str, name: str) -> set[str]:
    """What a step has to report of the name."""
    named = {
        "shaping": {"reward/shaping"},
        "mask": {"tokens/kept", "tokens/rejected"},
        "weight": {f"policy/{name}/mean"},
        "gate": {f"policy/{name}/zero_share"},
        "controller": {f"coefficient/{name.removeprefix('adaptive_')}"},
        "choice": {"loss/policy"},
        "advantage": {"reward/mean"},
    }
    if (kind, name) == VALUE:
        return {"critic/loss/value", "critic/value/squared_error"}
    if kind in named:
        return named[kind]
    term = OF_TERM[kind]
    objective: Objective = run.container.objective()
    measures = next(one.loss.measures for one in objective.terms if one.name == term)
    found = measures.named if isinstance(measures, Spy) else set[str]()
    assert bool(found) == (CATALOGUES[kind][name].measures is not None)
    return {f"loss/{term}"} | {f"{term}/{each}" for each in found}


def score(row: Trajectory) -> Scored:
    """Some number that differs between answers, in two parts."""
    total = sum(row.tokens.tolist())
    vowels, length = total % 7 / 7, total % 3 / 3
    return Scored(value=vowels + length, components={"vowels": vowels, "length": length})


@pytest.mark.parametrize(("kind", "name"), NAMES, ids=[f"{k}-{n}" for k, n in NAMES])
def test_every_algorithm_trains_two_steps_by_the_loop_it_belongs_to(
    tiny: dict[str, Any], other_model: Path, tmp_path: Path, kind: str, name: str
) -> None:
    """M2: what is accepted is used; the function gets its columns, weights change, and what it
    measures arrives."""
    run = build(tiny, *overrides(kind, name, other_model, tmp_path))
    run.container.reward.override(SimulatedReward(score))
    spy = spy_on(run, kind, name)
    before = run.container.policy().digest()
    report = run.fit() if kind == "fit" else run.train()
    assert report.finished
    assert [row["step"] for row in report.history] == [1, 2]
    assert spy is None or spy.was_called
    assert run.container.policy().digest() != before
    for row in report.history:
        assert metrics_of(run, kind, name) - row.keys() == set()
        assert all(math.isfinite(value) for value in row.values())
    if (kind, name) == VALUE:  # the critic's head begins at 0
        predictions = [row["critic/value/prediction"] for row in report.history]
        assert predictions[0] == 0.0 != predictions[1]


def test_no_catalogue_of_the_domain_is_left_out() -> None:
    """M2: an entry of any catalogue module is trained above, or is listed as refused."""
    listed = {CATALOGUES[kind][name].function for kind, name in NAMES}
    folders = [each.name for each in pkgutil.iter_modules(hexpo.domain.__path__) if each.ispkg]
    found: dict[str, Callable[..., Any]] = {}
    for folder in folders:
        package = importlib.import_module(f"hexpo.domain.{folder}")
        if any(each.name == "catalogue" for each in pkgutil.iter_modules(package.__path__)):
            module = importlib.import_module(f"hexpo.domain.{folder}.catalogue")
            for entries in vars(module).values():
                if isinstance(entries, Mapping):
                    found |= {
                        f"{folder}.{entry.name}": entry.function
                        for entry in entries.values()
                        if isinstance(entry, Entry)
                    }
    assert len(found) >= len(listed) > 60
    assert {name for name, function in found.items() if function not in listed} == set()


@pytest.mark.parametrize(("kind", "name"), list(REFUSED), ids=[name for _, name in REFUSED])
def test_what_nothing_provides_is_refused_before_anything_loads(
    tiny: dict[str, Any], other_model: Path, tmp_path: Path, kind: str, name: str
) -> None:
    """M2, M3: and the list of what is refused is exact."""
    with pytest.raises(ConfigurationError) as caught:
        build(tiny, *overrides(kind, name, other_model, tmp_path))
    assert REFUSED[kind, name] in str(caught.value)
    assert "which nothing in this run provides" in str(caught.value)
