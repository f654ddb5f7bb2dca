"""`hexpo simulate`: how many devices for what, which staleness, what step time to expect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.table import Table

from hexpo.domain.errors import ConfigurationError
from hexpo.entrypoints.cli import process
from hexpo.entrypoints.cli.asked import Asked

if TYPE_CHECKING:  # they import torch, which must not happen before the process is prepared
    from hexpo.adapters.simulated.lengths import Lengths
    from hexpo.infrastructure.config.schema import RunConfig
    from hexpo.infrastructure.forecast import Choice, Machine, Offer, Workload


def simulate(config: str, overrides: Sequence[str], asked: Asked) -> int:
    """Play the configuration's schedule in virtual time, and show what it reaches."""
    process.prepare(Path(config), overrides)
    from hexpo.infrastructure.config.fitting import is_fit
    from hexpo.infrastructure.config.load import load
    from hexpo.infrastructure.forecast import fastest

    console = Console()
    resolved = load(config, overrides=overrides).config
    if is_fit(resolved):
        raise ConfigurationError(
            f"algorithm.loss.name: {resolved.algorithm.loss.name} learns from given answers: there"
            " is no generation whose devices could be weighed; see hexpo plan"
        )
    machine, prompt_tokens = _machine(asked)
    work = _workload(resolved, asked, prompt_tokens)
    offers: list[Offer] = []
    with console.status("playing") as status:
        for one in _offers(resolved, machine, work, asked):
            offers.append(one)
            status.update(f"played {len(offers)}: {_name(one, machine)}")
    _show(console, offers, machine, work)
    best = fastest(offers)
    if len(offers) > 1:
        console.print(f"fastest: [bold]{_name(best, machine)}[/] (the freshest within 2 %)")
    _draw(asked.picture, offers, machine)
    console.print(f"picture: {asked.picture}")
    return 0


def _machine(asked: Asked) -> tuple[Machine, int]:
    """The devices, and the mean tokens of a prompt."""
    from hexpo.infrastructure.forecast import Machine, speeds_of

    machine = Machine(gpus=asked.gpus, gpus_per_replica=asked.gpus_per_replica)
    prompt_tokens = 0
    if asked.from_run is not None:
        seen = speeds_of(asked.from_run, slots=asked.slots)
        prompt_tokens = seen.prompt_tokens
        machine = attrs.evolve(
            machine,
            rollout=seen.rollout,
            training=seen.training,
            load_seconds=seen.load_seconds,
            switch_seconds=seen.load_seconds,
        )
    given = {
        "token_seconds": asked.token_seconds,
        "request_seconds": asked.request_seconds,
        "prefill_seconds": asked.prefill_seconds,
        "slots": asked.slots,
    }
    speed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    machine = attrs.evolve(machine, rollout=attrs.evolve(machine.rollout, **speed))
    if asked.train_token_seconds is not None:
        cost = attrs.evolve(machine.training, token_seconds=asked.train_token_seconds)
        machine = attrs.evolve(machine, training=cost)
    if asked.load_seconds is not None:
        machine = attrs.evolve(machine, load_seconds=asked.load_seconds)
    if asked.switch_seconds is not None:
        machine = attrs.evolve(machine, switch_seconds=asked.switch_seconds)
    return machine, prompt_tokens


def _workload(config: RunConfig, asked: Asked, prompt_tokens: int) -> Workload:
    from hexpo.infrastructure.config.algorithm import updates
    from hexpo.infrastructure.forecast import Workload

    return Workload(
        groups=config.training.prompts_per_step,
        samples=config.rollout.samples,
        updates=updates(config),
        lengths=_lengths(config, asked),
        prompt_tokens=prompt_tokens,
    )


def _lengths(config: RunConfig, asked: Asked) -> Lengths:
    from hexpo.adapters.simulated.lengths import Lengths, LogNormal, Quantile, measured

    longest = config.rollout.max_new_tokens
    quantile: Quantile = LogNormal(median=max(1.0, longest / 8), spread=0.8)
    if asked.lengths is not None:
        quantile = measured(asked.lengths)
    elif asked.from_run is not None:
        quantile = measured(asked.from_run / "samples.jsonl")
    return Lengths(quantile=quantile, longest=longest)


def _offers(config: RunConfig, machine: Machine, work: Workload, asked: Asked) -> Iterator[Offer]:
    from hexpo.infrastructure.forecast import offer, sweep

    choice, seed = _choice(config, asked), config.run.seed
    if asked.sweep:
        yield from sweep(machine, work, choice, steps=asked.steps, seed=seed)
        return
    wanted: list[int | None] = []
    if asked.split != "colocated":
        half = machine.gpus // 2
        wanted.append(half if asked.split is None else _generate(asked.split, machine.gpus))
    if asked.split == "colocated" or (asked.split is None and choice.max_staleness == 0):
        wanted.append(None)
    for one in wanted:
        yield offer(machine, work, choice, one, steps=asked.steps, seed=seed)


def _choice(config: RunConfig, asked: Asked) -> Choice:
    from hexpo.domain.objective import Proximal
    from hexpo.infrastructure.config.algorithm import objective_of, updates
    from hexpo.infrastructure.config.streaming import streams
    from hexpo.infrastructure.forecast import Choice

    chosen, stored = config.asynchrony, objective_of(config).proximal is Proximal.STORED
    parts = asked.parts or (updates(config) if streams(config) else 1)
    if parts > updates(config) or (parts > 1 and stored):
        why = "its old log-probs are scored first" if stored else f"{updates(config)} steps"
        raise ConfigurationError(
            f"--parts {parts}: a batch of this configuration cannot be trained in so many ({why})"
        )
    return Choice(
        max_staleness=chosen.max_staleness if asked.staleness is None else asked.staleness,
        order=chosen.order,
        window=chosen.window,
        on_update=chosen.on_update,
        parts=parts,
        old_pass=stored,
    )


def _generate(split: str, gpus: int) -> int:
    """Devices that generate, of a split `g:t`."""
    generate, _, train = split.partition(":")
    if not (generate.isdigit() and train.isdigit()) or int(generate) + int(train) != gpus:
        raise ConfigurationError(
            f"--split {split!r}: give G:T with G + T = {gpus} devices, or `colocated`"
        )
    return int(generate)


def _words(one: Offer, machine: Machine) -> tuple[str, str, str]:
    """Devices, staleness and order."""
    where = "all" if one.generate is None else f"{one.generate}:{machine.gpus - one.generate}"
    window = f" {one.choice.window}" if one.choice.window else ""
    return where, f"{one.choice.max_staleness:g}", f"{one.choice.order.value}{window}"


def _name(one: Offer, machine: Machine) -> str:
    where, staleness, order = _words(one, machine)
    return f"{'colocated' if where == 'all' else where}, staleness {staleness}, {order}"


def _show(console: Console, offers: Sequence[Offer], machine: Machine, work: Workload) -> None:
    lengths = work.lengths
    console.print(
        f"{work.groups} prompts x {work.samples} answers a step, {lengths.mean():,.0f} tokens on"
        f" average, at most {lengths.longest:,}; {machine.gpus} devices"
    )
    table = Table(
        title="forecast", title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in ("G:T", "S", "order"):
        table.add_column(name, no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for one in offers:
        table.add_row(*_cells(one, machine))
    console.print(table)
    console.print(
        "[dim]G:T: devices that generate and train, S: max_staleness, drop: groups dropped as too"
        " old. A step takes at least the busy time of either side, and by Little's law at least"
        " the mean time from a group's admission to its publication, over S + 1.[/]"
    )


_COLUMNS = (
    "step s",
    "tok/s",
    "T waits",
    "G idle",
    "age mean",
    "age max",
    "drop",
    "busy G",
    "busy T",
    "Little",
)


def _cells(one: Offer, machine: Machine) -> tuple[str, ...]:
    seen, floors = one.seen, one.seen.floors
    return (
        *_words(one, machine),
        _seconds(seen.step_seconds),
        f"{seen.tokens_per_second:,.0f}",
        f"{seen.trainer_bubble:.0%}",
        f"{seen.rollout_bubble:.0%}",
        f"{seen.age_mean:.2f}",
        f"{seen.age_max}",
        f"{seen.dropped:.0%}",
        *map(_seconds, (floors.generation, floors.training, floors.little)),
    )


def _seconds(value: float) -> str:
    """At most six characters below ten million: a cut number is none."""
    return f"{value:.3g}" if 1 <= value < 1000 else f"{value:.3f}" if value < 1 else f"{value:.0f}"


def _draw(path: Path, offers: Sequence[Offer], machine: Machine) -> None:
    """Bars: what the trainer did in a step, beside both bounds."""
    from hexpo.domain.errors import MissingExtra

    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("a picture needs matplotlib: pip install 'hexpo[demo]'") from error
    figure = Figure(figsize=(9, 1.5 + 0.35 * len(offers)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names = [_name(one, machine) for one in offers]
    busy = [one.seen.training_seconds for one in offers]
    rest = [one.seen.step_seconds - one.seen.training_seconds for one in offers]
    axes.barh(names, busy, color="C0", label="trainer busy")
    axes.barh(names, rest, left=busy, color="C7", alpha=0.5, label="trainer waits")
    for place, one in enumerate(offers):
        floors = one.seen.floors
        axes.plot(floors.generation, place, "|", color="C1", markersize=14, markeredgewidth=2)
        axes.plot(floors.little, place, "|", color="C3", markersize=14, markeredgewidth=2)
    axes.plot([], [], "|", color="C1", label="generation's bound")
    axes.plot([], [], "|", color="C3", label="Little's bound")
    axes.set(xlabel="seconds a step", title=f"{machine.gpus} devices")
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
