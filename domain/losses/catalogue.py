"""The losses of a policy and a critic, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hexpo.domain.aggregate import Mode, Unit
from hexpo.domain.catalogue import Elsewhere, Entry, by_name
from hexpo.domain.losses.covariance import (
    clip_cov,
    clip_cov_measures,
    kl_cov,
    kl_cov_measures,
)
from hexpo.domain.losses.dppo import dppo_kl, dppo_kl_measures, dppo_tv, dppo_tv_measures
from hexpo.domain.losses.dro import dro, dro_measures
from hexpo.domain.losses.entropy import entropy
from hexpo.domain.losses.gspo import (
    geo_mean,
    geo_mean_measures,
    gspo,
    gspo_measures,
    gspo_token,
    gspo_token_measures,
    luspo,
)
from hexpo.domain.losses.ppo import ppo, ppo_measures
from hexpo.domain.losses.reinforce import (
    aipo,
    aipo_measures,
    cispo,
    cispo_measures,
    reinforce,
)
from hexpo.domain.losses.sapo import sapo, sapo_measures
from hexpo.domain.losses.supervised import mtp, nll, nll_measures, observation_nll
from hexpo.domain.losses.value import value, value_measures
from hexpo.domain.losses.vespo import vespo

_TOKEN, _SEQUENCE, _A_ROW = Unit.TOKEN, Unit.SEQUENCE, Mode.SEQ_MEAN_TOKEN_MEAN
_COVARIANT = frozenset({"scoring pass", "whole-step covariance"})

LOSSES: Mapping[str, Entry] = by_name(
    Entry(
        name="ppo", function=ppo, unit=_TOKEN, measures=ppo_measures, silent_at_zero_advantage=True
    ),
    Entry(
        name="gspo",
        function=gspo,
        unit=_SEQUENCE,
        measures=gspo_measures,
        default_mode=_A_ROW,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="gspo_token",
        function=gspo_token,
        unit=_TOKEN,
        measures=gspo_token_measures,
        default_mode=_A_ROW,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="luspo",
        function=luspo,
        unit=_SEQUENCE,
        measures=gspo_measures,
        default_mode=_A_ROW,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="cispo",
        function=cispo,
        unit=_TOKEN,
        measures=cispo_measures,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="sapo",
        function=sapo,
        unit=_TOKEN,
        measures=sapo_measures,
        default_mode=_A_ROW,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="geo_mean",
        function=geo_mean,
        unit=_SEQUENCE,
        measures=geo_mean_measures,
        default_mode=_A_ROW,
        silent_at_zero_advantage=True,
    ),
    Entry(name="reinforce", function=reinforce, unit=_TOKEN, silent_at_zero_advantage=True),
    Entry(name="gpg", function=reinforce, unit=_TOKEN, silent_at_zero_advantage=True),
    Entry(
        name="clip_cov",
        function=clip_cov,
        unit=_TOKEN,
        measures=clip_cov_measures,
        needs=_COVARIANT,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="kl_cov",
        function=kl_cov,
        unit=_TOKEN,
        measures=kl_cov_measures,
        needs=_COVARIANT,
    ),
    Entry(
        name="dppo_tv",
        function=dppo_tv,
        unit=_TOKEN,
        measures=dppo_tv_measures,
        silent_at_zero_advantage=True,
    ),
    Entry(
        name="dppo_kl",
        function=dppo_kl,
        unit=_TOKEN,
        measures=dppo_kl_measures,
        silent_at_zero_advantage=True,
    ),
    Entry(name="dro", function=dro, unit=_TOKEN, measures=dro_measures),
    Entry(
        name="aipo",
        function=aipo,
        unit=_TOKEN,
        measures=aipo_measures,
        silent_at_zero_advantage=True,
    ),
    Entry(name="vespo", function=vespo, unit=_TOKEN, silent_at_zero_advantage=True),
)
"""What `algorithm.loss` may name."""

TERMS: Mapping[str, Entry] = by_name(
    Entry(name="entropy", function=entropy, unit=_TOKEN),
    Entry(
        name="value",
        function=value,
        unit=_TOKEN,
        measures=value_measures,
        needs=frozenset({"critic"}),
    ),
    Entry(name="nll", function=nll, unit=_TOKEN, measures=nll_measures),
    Entry(
        name="observation_nll",
        function=observation_nll,
        unit=_TOKEN,
        needs=frozenset({"observation mask"}),
    ),
    Entry(name="mtp", function=mtp, unit=_TOKEN, needs=frozenset({"multi-token head"})),
)
"""Further summands of an objective."""

ELSEWHERE: Mapping[str, Elsewhere] = MappingProxyType(
    {
        "vanilla": Elsewhere(means="ppo", hint="verl's vanilla is ppo"),
        "grpo": Elsewhere(
            means="ppo",
            mode=Mode.SEQ_MEAN_TOKEN_MEAN,
            hint="TRL's grpo is ppo with seq-mean-token-mean",
        ),
        "dapo": Elsewhere(
            means="ppo", mode=Mode.TOKEN_MEAN, hint="TRL's dapo is ppo with token-mean"
        ),
        "dr_grpo": Elsewhere(
            means="ppo",
            mode=Mode.SEQ_MEAN_TOKEN_SUM_NORM,
            hint="dr_grpo is ppo with seq-mean-token-sum-norm, and grpo advantages with"
            " scale: none",
        ),
        "gmpo": Elsewhere(means="geo_mean", hint="GMPO is geo_mean"),
        "importance_sampling": Elsewhere(
            means="cispo",
            mode=Mode.TOKEN_SUM,
            hint="Tinker's losses are token-sum; without a bound cispo is its gradient",
        ),
        "bnpo": Elsewhere(
            hint="its value depends on the micro-batch; use ppo with the mode token-mean"
        ),
        "ipo": Elsewhere(
            hint="prime-rl's ipo is a symmetric DPPO gate: use dppo_tv with gate_low equal to"
            " gate_high and the proximal policy behaviour; the preference loss ipo is a"
            " preference term"
        ),
        "bypass": Elsewhere(
            hint="bypass is not a loss but where old comes from: set the proximal policy to"
            " behaviour, or use the loss aipo"
        ),
    }
)
"""Names of other libraries."""

OPTIONS_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "delta": "dual_clip",
        "clip_ratio_c": "dual_clip",
        "epsilon": "clip_low and clip_high",
        "epsilon_high": "clip_high (for cispo TRL's bound is 1 + clip_high)",
        "clip_ratio": "clip_low and clip_high",
        "clip_ratio_low": "clip_low",
        "clip_ratio_high": "clip_high",
    }
)
"""What options of other libraries are called here, for the message that refuses them."""
