"""Default options of every named algorithm, as the sources give them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from hexpo.domain.algorithms import CATALOGUES, lines
from hexpo.domain.catalogue import Entry

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "advantage/gae": {"gamma": "1.0", "lam": "0.95", "whitened": "True"},
    "advantage/vapo": {"gamma": "1.0", "alpha": "0.05", "whitened": "True"},
    "advantage/grpo": {"scale": "group", "epsilon": "1e-06"},
    "advantage/grpo_passk": {"epsilon": "1e-06"},
    "advantage/gdpo": {"components": "()", "weights": "None", "epsilon": "1e-06"},
    "advantage/gpg": {"norm": "1.0"},
    "advantage/reinforce_plus_plus": {"gamma": "1.0", "whitened": "True"},
    "advantage/optimal_token_baseline": {"truncation": "None"},
    "advantage/tir_optimal_token_baseline": {"truncation": "None"},
    "advantage/task_and_distillation": {"task": "grpo", "coefficient": "1.0"},
    "policy loss/ppo": {"clip_low": "0.2", "clip_high": "0.2", "dual_clip": "None"},
    "policy loss/gspo": {"clip_low": "0.0003", "clip_high": "0.0004"},
    "policy loss/gspo_token": {"clip_low": "0.0003", "clip_high": "0.0004"},
    "policy loss/luspo": {"clip_low": "0.0003", "clip_high": "0.0004"},
    "policy loss/cispo": {"clip_low": "1.0", "clip_high": "4.0"},
    "policy loss/sapo": {"tau_positive": "1.0", "tau_negative": "1.05"},
    "policy loss/geo_mean": {"clip_low": "0.4", "clip_high": "0.4"},
    "policy loss/clip_cov": {"clip_low": "0.2", "clip_high": "0.2"},
    "policy loss/kl_cov": {"coefficient": "1.0"},
    "policy loss/dppo_tv": {"gate_low": "0.2", "gate_high": "0.2", "truncation": "20.0"},
    "policy loss/dppo_kl": {"gate_low": "0.2", "gate_high": "0.2", "truncation": "20.0"},
    "policy loss/dro": {"beta": "0.05"},
    "policy loss/aipo": {"truncation": "2.0"},
    "policy loss/vespo": {
        "power_positive": "2.0",
        "decay_positive": "3.0",
        "power_negative": "3.0",
        "decay_negative": "2.0",
    },
    "term/value": {"clip": "0.5"},
    "distillation/forward_kl": {"tail": "True"},
    "distillation/reverse_kl": {"tail": "True"},
    "distillation/jsd": {"beta": "0.5", "tail": "True"},
    "distillation/skew_kl": {"alpha": "0.1", "tail": "True"},
    "distillation/skew_reverse_kl": {"alpha": "0.1", "tail": "True"},
    "distillation/sampled": {"estimator": "k2"},
    "fit/dpo": {"beta": "0.1", "label_smoothing": "0.0"},
    "fit/ipo": {"beta": "0.1"},
    "fit/simpo": {"beta": "2.0", "gamma": "1.0"},
    "fit/orpo": {"weight": "0.1"},
    "fit/bradley_terry": {"margin": "0.0"},
    "fit/kto": {"beta": "0.1", "desirable": "1.0", "undesirable": "1.0"},
    "shaping/overlong": {"maximum": "required", "buffer": "required", "factor": "1.0"},
    "weight/truncated": {"level": "token", "bound": "2.0"},
    "weight/stored": {"level": "token", "bound": "2.0"},
    "weight/resampled": {"preference": "power", "power": "2.0"},
    "weight/two_sided": {"level": "token", "low": "0.5", "high": "5.0"},
    "mask/rejection": {"divergence": "k1", "over": "token", "low": "None", "high": "2.0"},
    "mask/veto": {"bound": "0.0001"},
    "mask/m2": {"bound": "0.04", "threshold": "None"},
    "mask/top_entropy": {"share": "0.2", "threshold": "None"},
    "choice/top_covariance": {"share": "0.0002"},
    "choice/drawn_covariance": {
        "generator": "required",
        "share": "0.0002",
        "low": "1.0",
        "high": "5.0",
    },
    "gate/off_policy_sequence": {"delta": "0.1"},
    "controller/adaptive_kl": {
        "coefficient": "required",
        "target": "required",
        "horizon": "10000.0",
    },
    "controller/adaptive_entropy": {
        "coefficient": "0.0",
        "target": "required",
        "step": "0.005",
        "lowest": "0.0",
        "highest": "1.0",
    },
}

FOUND = {f"{kind}/{line.name}": line.options for kind in CATALOGUES for line in lines(kind)}
MEASURED = [
    entry for kind in CATALOGUES.values() for entry in kind.values() if entry.measures is not None
]


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


@pytest.mark.parametrize("name", FOUND)
def test_the_defaults_are_the_published_ones(name: str) -> None:
    """A default that moves changes every run that does not name it: it has to be said here."""
    found = {key: plain(value) for key, value in FOUND[name].items()}
    assert found == dict(DEFAULTS.get(name, {}))


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry.name)
def test_what_is_measured_has_the_defaults_of_what_is_trained(entry: Entry) -> None:
    """C7: a share of clipped tokens under other bounds than the loss's would be a wrong number."""
    assert entry.measures is not None
    own = inspect.signature(entry.function).parameters
    for name, option in inspect.signature(entry.measures).parameters.items():
        if option.default is not inspect.Parameter.empty and not name.endswith(("_T", "_S")):
            assert option.default == own[name].default
