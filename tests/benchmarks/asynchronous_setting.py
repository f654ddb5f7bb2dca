"""The published setting of asynchronous.py: its table, its costs, and one simulation of it."""

from __future__ import annotations

import gc

import attrs
import torch

from hexpo.adapters.simulated.costs import RolloutSpeed, TrainingCost
from hexpo.adapters.simulated.lengths import Lengths, LogNormal
from hexpo.infrastructure.forecast import Choice, Costs, Forecast, Workload, forecast

PROMPTS, SAMPLES, UPDATES = 512, 16, 16
LONGEST, PROMPT_TOKENS = 28_672, 200
SPREAD, KINSHIP = 1.2, 0.5

SPEED = RolloutSpeed(
    token_seconds=5.1e-3,  # 15 GB of weights at 3 TB/s: a lone answer gets 196 tokens a second
    request_seconds=1.5e-4,  # 15 GFLOP a token at 100 TFLOP/s, whether it is sampled or read
    slots=256,
    prefill_seconds=1.5e-4,
)
TOY = RolloutSpeed(token_seconds=1 / 160, request_seconds=0.0, slots=1 << 20)
"""Every answer gets 160 tokens a second, however many there are."""


@attrs.frozen(kw_only=True)
class Published:
    """One row of the published table, in seconds a step."""

    colocated: float
    generation: float
    old: float
    update: float
    rest: float
    asynchronous: float
    """Half of the devices for each side, staleness 0.5."""
    waiting: float
    asynchronous_update: float
    speed_up: float
    """Of the whole run of 400 steps."""


TABLE = {
    32: Published(
        colocated=790.1,
        generation=357.4,
        old=107.7,
        update=269.8,
        rest=55.2,
        asynchronous=294.8,
        waiting=21.3,
        asynchronous_update=313.8,
        speed_up=2.66,
    ),
    64: Published(
        colocated=365.3,
        generation=150.7,
        old=70.3,
        update=133.4,
        rest=10.9,
        asynchronous=189.3,
        waiting=28.5,
        asynchronous_update=157.0,
        speed_up=1.92,
    ),
    128: Published(
        colocated=356.3,
        generation=177.9,
        old=53.9,
        update=113.8,
        rest=10.7,
        asynchronous=150.6,
        waiting=33.1,
        asynchronous_update=113.2,
        speed_up=2.35,
    ),
}


def workload(median: float, *, share: int, times: int = 1) -> Workload:
    """The published batch, or several of it.

    Args: share: only so much of it is played, on as much of the replicas: a batch of a quarter
        takes as long on a quarter of the devices, but for its longest answer.
    """
    lengths = Lengths(
        quantile=LogNormal(median=median, spread=SPREAD), longest=LONGEST, kinship=KINSHIP
    )
    return Workload(
        groups=PROMPTS * times // share,
        samples=SAMPLES,
        updates=UPDATES,
        lengths=lengths,
        prompt_tokens=PROMPT_TOKENS,
    )


def training(update: float, old: float, publish: float, work: Workload) -> TrainingCost:
    """Costs a token from the seconds of a published step."""
    tokens = work.groups * work.samples * (work.lengths.mean() + work.prompt_tokens)
    return TrainingCost(
        token_seconds=update / tokens, score_seconds=old / tokens, publish_seconds=publish
    )


def colocated(devices: int, work: Workload, *, share: int) -> Costs:
    """All devices generate, then all train."""
    row = TABLE[devices]
    return Costs(
        replicas=devices // share,
        rollout=SPEED,
        training=training(row.update, row.old, row.rest, work),
    )


def separate(devices: int, work: Workload, *, share: int, generate: int | None = None) -> Costs:
    """Some devices for each side, by default half. What old log-probs would cost there is not
    published: they keep their share of the update."""
    generate = devices // 2 if generate is None else generate
    slower = devices / 2 / (devices - generate)
    row = TABLE[devices]
    old = row.old * row.asynchronous_update / row.update
    rest = max(0.0, row.asynchronous - row.waiting - row.asynchronous_update)
    return Costs(
        replicas=generate // share,
        rollout=SPEED,
        training=training(row.asynchronous_update * slower, old * slower, rest, work),
        load_seconds=1.0,
    )


@attrs.frozen(kw_only=True)
class Job:
    """One simulation."""

    section: str
    name: str
    devices: int
    work: Workload
    costs: Costs
    choice: Choice
    steps: int
    prompts: int = PROMPTS
    """Of a whole batch; fewer are played."""

    def run(self) -> Forecast:
        """Play it."""
        _settle()
        warmup = 2 + round(self.choice.max_staleness)
        return forecast(self.work, self.costs, self.choice, steps=self.steps, warmup=warmup)


def _settle() -> None:
    """A worker's settings: small tensors, and objects most of which live for a step."""
    torch.set_num_threads(1)
    gc.set_threshold(200_000, 50, 100)


def calibrated(devices: int, *, share: int) -> float:
    """The median length with which colocated generation takes as long as published (secant)."""

    _settle()

    def excess(median: float) -> float:
        work = workload(median, share=share)
        free = attrs.evolve(colocated(devices, work, share=share), training=TrainingCost())
        taken = forecast(work, free, Choice(), steps=3, warmup=1).step_seconds
        return taken - TABLE[devices].generation

    low, high = 900.0, 1_800.0
    under, over = excess(low), excess(high)
    for _ in range(3):
        if abs(over) < 1 or over == under:
            break
        low, high = high, high - over * (high - low) / (over - under)
        under, over = over, excess(high)
    return high
