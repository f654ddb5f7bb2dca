"""What may happen to a run, drawn from a seed."""

from __future__ import annotations

from random import Random

import attrs

from hexpo.application.continuing import OnUpdate
from hexpo.application.schedule import Side
from hexpo.domain.schedule import Order, Plan, plan, window_of
from hexpo.domain.schedule.capacity import largest_window
from hexpo.domain.seeds import seed_for
from hexpo.entrypoints.testing.mortal import Mishap


@attrs.frozen(kw_only=True)
class Interruption:
    """How one process of the run ends before its last step."""

    kind: str
    """`crash`: cancelled, nothing is saved; `stop`: asked to end; `engine`: the rollout engine
    dies; `transfer`: a weight update fails half-way; `grader`: the grader raises."""
    after: float
    """Virtual seconds."""


@attrs.frozen(kw_only=True)
class Fault:
    """What befalls one replica of several, in the run's first process."""

    kind: Mishap
    replica: str
    after: float
    """Virtual seconds from the start."""
    back: float | None = None
    """Seconds after it was fenced it is well again and readmitted; one that hangs or babbles, so
    long after it began. None: never."""
    is_replaced: bool = True
    """A new engine comes in its place."""


@attrs.frozen(kw_only=True)
class Scenario:
    """One run: its settings, how long things take, and what goes wrong."""

    seed: int
    groups: int = 2
    samples: int = 2
    steps: int = 4
    staleness: float = 0.0
    order: Order = Order.SUBMISSION
    window: int | None = None
    on_update: OnUpdate = OnUpdate.KEEP
    parts: int = 1
    """A batch is trained in so many parts, each as soon as its groups are there."""
    prompts: int = 7
    save_every: int = 0
    evaluate_every: int = 0
    replicas: int = 1
    slots: int = 4
    token_seconds: float = 0.1
    tail: float = 1.0
    """Standard deviation of the logarithm of an answer's length."""
    grade_seconds: float = 0.0
    step_seconds: float = 1.0
    load_seconds: float = 0.1
    deadline_seconds: float = 60.0
    failing: float = 0.0
    """Share of rollouts that raise at their first try."""
    hanging: float = 0.0
    """Share that never answers."""
    garbled: float = 0.0
    """Share that answers what cannot be one."""
    ungraded: float = 0.0
    """Share of answers without a score."""
    flat: float = 0.0
    """Share of groups whose scores are equal."""
    filters: bool = False
    """Flat groups are left out, and asked for again within a small budget."""
    jitter: float = 0.0
    whole: bool = True
    """With tables, advantages and objective; else only what the loop sees of learning."""
    interruptions: tuple[Interruption, ...] = ()
    fleet: int = 0
    """Replicas behind the library's own routing and fencing; 0: one engine of `replicas`."""
    least_share: float = 0.5
    """Of them: the run goes on while so many live."""
    catch_up: bool = False
    """A readmitted one loads the present version at once."""
    faults: tuple[Fault, ...] = ()
    side: Side = Side.ROLLOUT
    """Who answers evaluations."""
    shared: bool = False
    """Generation and training take turns on one device."""

    @property
    def plan(self) -> Plan:
        """The gate's numbers."""
        window = window_of(self.order, window=self.window)
        return plan(groups=self.groups, max_staleness=self.staleness, window=window)

    def happens(self, share: float, *what: int | str) -> bool:
        """Whether something that has this chance happens to this one: the same at every try."""
        return share > 0 and seed_for(self.seed, *what) / 2**63 < share


EVALUATED = 2
"""Prompts of an evaluation."""
SHARE = 0.25
"""Of the scenarios: several replicas, one or more of which something befalls."""


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(seed)
    groups, samples = random.randint(1, 3), random.randint(1, 3)
    staleness = random.choice([0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0])
    order, window = _order(random, groups, staleness)
    faulty = random.random() < 0.5
    share = random.choice([0.02, 0.1, 0.25])
    drawn = Scenario(
        seed=seed,
        groups=groups,
        samples=samples,
        steps=random.randint(2, 5),
        staleness=staleness,
        order=order,
        window=window,
        on_update=random.choice(list(OnUpdate)),
        prompts=random.randint(2, 9),
        save_every=random.randint(0, 2),
        evaluate_every=random.choice([0, 0, 0, 2]),
        replicas=random.randint(1, 2),
        slots=random.randint(1, 6),
        tail=random.choice([0.0, 0.5, 1.2]),
        grade_seconds=random.choice([0.0, 0.0, 0.3, 3.0]),
        step_seconds=random.choice([0.0, 0.2, 1.0, 5.0]),
        load_seconds=random.choice([0.0, 0.1, 2.0]),
        failing=share * (faulty and random.random() < 0.5),
        hanging=share * (faulty and random.random() < 0.3),
        garbled=share * (faulty and random.random() < 0.3),
        ungraded=share * (faulty and random.random() < 0.5),
        flat=0.3 * (random.random() < 0.3),
        filters=samples > 1 and random.random() < 0.5,  # one score alone is always flat
        jitter=random.choice([0.0, 0.01]),
        whole=random.random() < 0.1,
        interruptions=_interruptions(random),
        parts=random.randint(1, 3),
    )
    with_replicas = random.random() < SHARE
    # Drawn by itself, so that what else a seed means does not depend on it.
    more = Random(seed_for(seed, "more"))
    if with_replicas:
        return _with_leases(_with_replicas(drawn, random), more)
    return _with_one_device(drawn, more)


def _order(random: Random, groups: int, staleness: float) -> tuple[Order, int | None]:
    order = random.choice(list(Order))
    if order is not Order.WINDOW:
        return order, None
    widest = largest_window(groups=groups, max_staleness=staleness)
    return (order, random.randint(1, widest)) if staleness else (Order.SUBMISSION, None)


def _interruptions(random: Random) -> tuple[Interruption, ...]:
    kinds = ("crash", "stop", "engine", "transfer")
    return tuple(
        Interruption(kind=random.choice(kinds), after=random.uniform(0.0, 12.0))
        for _ in range(random.choice([0, 0, 1, 1, 2]))
    )


def _with_replicas(drawn: Scenario, random: Random) -> Scenario:
    """Two to four replicas; most of the time something befalls some of them."""
    fleet = random.randint(2, 4)
    struck = random.sample(range(fleet), random.choice([0, 1, 1, 1, 2, 2, fleet]))
    faults = tuple(_fault(random, place) for place in struck)
    hangs = any(one.kind is Mishap.HANGS for one in faults)
    return attrs.evolve(
        drawn,
        evaluate_every=0 if hangs else drawn.evaluate_every,  # it might get no answer at all
        fleet=fleet,
        replicas=1,
        token_seconds=0.3,  # long enough for a mishap to meet answers
        deadline_seconds=600.0,
        least_share=random.choice([0.25, 0.5, 0.5, 1.0]),
        catch_up=random.random() < 0.5,
        faults=faults,
    )


def _with_leases(drawn: Scenario, random: Random) -> Scenario:
    """Half of those with replicas that all answer in the end are evaluated beside training."""
    silent = any(one.kind in (Mishap.HANGS, Mishap.BABBLES) for one in drawn.faults)
    if silent or random.random() < 0.5:
        return drawn
    return attrs.evolve(drawn, side=Side.LEASE, evaluate_every=random.randint(1, 2))


def _with_one_device(drawn: Scenario, random: Random) -> Scenario:
    """A quarter takes turns; others are evaluated by the trainer; some interruptions are the
    grader's."""
    if random.random() < 0.25:
        drawn = attrs.evolve(drawn, shared=True, parts=1)
    elif random.random() < 0.5:
        drawn = attrs.evolve(drawn, side=Side.TRAINER)
    interruptions = tuple(
        attrs.evolve(one, kind="grader") if random.random() < 0.2 else one
        for one in drawn.interruptions
    )
    return attrs.evolve(drawn, interruptions=interruptions)


def _fault(random: Random, place: int) -> Fault:
    comes_back = random.random() < 0.6
    return Fault(
        kind=random.choice(list(Mishap)),
        replica=f"replica-{place}",
        after=random.uniform(0.0, 6.0),
        back=random.uniform(0.1, 10.0) if comes_back else None,
        is_replaced=random.random() < 0.5,
    )
