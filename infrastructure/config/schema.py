"""The typed configuration of a run: every first-class key, its default and its range.

`options` of an adapter, of an estimator or of a loss are checked against that adapter's `Config`
or that function's signature (see `options`); they are no keys of this schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hexpo.adapters.models.policy import Precision
from hexpo.application.continuing import OnUpdate
from hexpo.application.filtering import OnLong
from hexpo.application.schedule import Side
from hexpo.domain.aggregate import Mode
from hexpo.domain.kl.term import Target
from hexpo.domain.schedule import Order
from hexpo.domain.shaping.groups import Flat
from hexpo.infrastructure.config.choices import KLPlace, ModelRole, Placement, Start
from hexpo.infrastructure.config.ranges import not_empty, within


def _options() -> Any:
    return attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Adapter:
    """A chosen adapter and what is passed to it."""

    kind: str = attrs.field(validator=not_empty)
    """Folder name, dotted path or entry point of the adapter."""
    options: Mapping[str, Any] = _options()
    """The adapter's own settings."""


@attrs.frozen(kw_only=True)
class RunSection:
    """What is run, and where its results go."""

    name: str = attrs.field(default="run", validator=not_empty)
    """Name of the run's folder; a number is added where it is taken."""
    folder: str = attrs.field(default="runs", validator=not_empty)
    """Folder of all runs."""
    seed: int = attrs.field(default=0, validator=within(0, 2**62))
    """Every random number of the run follows from it."""
    steps: int = attrs.field(default=100, validator=within(1))
    """Publications of a new policy version until the run ends."""


@attrs.frozen(kw_only=True)
class ModelSection:
    """The policy's model."""

    path: str = attrs.field(validator=not_empty)
    """A Hugging Face folder, a .gguf file, `package:<name>`, or a hub's model in the cache."""
    precision: Precision = Precision.BF16
    """What working weights and activations are stored in; masters are single precision."""


@attrs.frozen(kw_only=True)
class DataSection:
    """Where prompts come from."""

    train: Adapter
    """Prompts that are trained on."""
    evaluation: Adapter | None = None
    """Held-out prompts; without them nothing is evaluated."""
    max_prompt_tokens: int = attrs.field(default=1024, validator=within(1))
    """Longest rendered prompt."""
    on_long: OnLong = OnLong.FILTER
    """What becomes of a longer prompt."""


@attrs.frozen(kw_only=True)
class AgentSection:
    """How a prompt is played."""

    kind: str = attrs.field(default="single_turn", validator=not_empty)
    """The agent loop: `single_turn`, `dialogue`, or a module's dotted path."""
    options: Mapping[str, Any] = _options()
    """The agent's own settings."""


@attrs.frozen(kw_only=True)
class RolloutSection:
    """How answers are generated in training."""

    engine: str = attrs.field(default="embedded", validator=not_empty)
    """The rollout adapter."""
    options: Mapping[str, Any] = _options()
    """The engine's own settings."""
    agent: AgentSection = AgentSection()
    """How a prompt is played."""
    samples: int = attrs.field(default=8, validator=within(1))
    """Answers a prompt."""
    temperature: float = attrs.field(default=1.0, validator=within(0, 100, open_low=True))
    """Logits are divided by it, in the rollout and in the trainer."""
    max_new_tokens: int = attrs.field(default=256, validator=within(1))
    """Longest answer; of a conversation, all that follows the prompt."""
    sampling: Mapping[str, Any] = _options()
    """What else shapes an answer: filters, stop texts (see below)."""
    replicas: int = attrs.field(default=0, validator=within(0))
    """Engines in processes of their own; 0: one engine in the trainer's process."""
    transfer: str = attrs.field(default="auto", validator=not_empty)
    """How weights reach the engines: an adapter, or `auto` for the fastest that fits."""
    probe_every: int = attrs.field(default=0, validator=within(0))
    """Steps between probes that compare every engine's log-probs with the trainer's; 0: none."""
    retries: int = attrs.field(default=1, validator=within(0))
    """Further tries of a rollout that raised."""
    deadline_seconds: float = attrs.field(default=600.0, validator=within(0, open_low=True))
    """Bound of one try; then its sample is cancelled and has no reward."""


@attrs.frozen(kw_only=True)
class TrainingSection:
    """How the policy learns from a batch."""

    backend: str = attrs.field(default="fsdp", validator=not_empty)
    """The training adapter."""
    options: Mapping[str, Any] = _options()
    """The backend's own settings: learning rate, schedule, clipping, low-rank adapters."""
    prompts_per_step: int = attrs.field(default=8, validator=within(1))
    """Groups in a batch; times `rollout.samples` it is the batch in sequences."""
    updates_per_batch: int = attrs.field(default=1, validator=within(1))
    """Optimizer steps that a batch is split into (mini-batches of whole groups)."""
    ranks: int = attrs.field(default=1, validator=within(1))
    """Processes that share the training; 1: this process."""
    epochs_per_batch: int = attrs.field(default=1, validator=within(1))
    """How often each batch is gone through."""


@attrs.frozen(kw_only=True)
class NamedFunction:
    """An estimator or a loss of the catalogue, or a dotted path to a function."""

    name: str = attrs.field(validator=not_empty)
    """Name in the catalogue (see `hexpo algorithms`), or `module:function`."""
    options: Mapping[str, Any] = _options()
    """The function's own options."""


@attrs.frozen(kw_only=True)
class KLSection:
    """The pull towards another policy."""

    where: KLPlace = KLPlace.NONE
    """Whether it acts in the loss, in the reward, or not at all."""
    coefficient: float = attrs.field(default=0.001, validator=within(0))
    """Its weight; with 0 it acts nowhere, and no reference is built."""
    estimator: str = attrs.field(default="k3", validator=not_empty)
    """How it is measured on sampled tokens."""
    unbiased: bool = False
    """Weigh by the importance ratio, so that its gradient is right off-policy too (loss only)."""
    target: Target = Target.REFERENCE
    """Which policy it pulls to."""

    @property
    def acts(self) -> KLPlace:
        """Where it has an effect: nowhere if its weight is 0."""
        return self.where if self.coefficient else KLPlace.NONE


@attrs.frozen(kw_only=True)
class TermSection:
    """A further summand of the objective."""

    name: str = attrs.field(validator=not_empty)
    """Its name in metrics."""
    loss: NamedFunction
    """What it minimises."""
    coefficient: float = 1.0
    """Its weight in the sum."""
    aggregation: Mode = Mode.TOKEN_MEAN
    """How its units become one number."""
    constant: float | None = attrs.field(default=None, validator=within(0, open_low=True))
    """Divisor of `seq-mean-token-sum-norm`, in tokens."""


@attrs.frozen(kw_only=True)
class ZeroVarianceSection:
    """Groups whose scores are all equal."""

    treatment: Flat = Flat.KEEP
    """What becomes of such a group."""
    options: Mapping[str, Any] = _options()
    """`least`: scores that differ by no more are equal. `budget`: groups that a step may ask for
    in their place (`resample`); when it is spent the step is smaller. `hardest`, `easiest`: the
    running pass rates between which a prompt is asked again; `passed`: the score that counts as
    passed; `decay`: how much of the old rate stays; `revisit`: how often one outside is asked."""


@attrs.frozen(kw_only=True)
class FurtherModel:
    """A model beside the policy."""

    role: ModelRole
    """What it is for."""
    path: str | None = None
    """As `model.path`; unset: the policy's own model."""
    precision: Precision | None = None
    """As `model.precision`; unset: the policy's."""
    name: str = ""
    """Of a teacher, in metrics; of several each needs one."""
    sources: tuple[str, ...] = ()
    """Of a teacher: data sources of the prompts that it teaches; none: all that no other has."""
    weight: float = attrs.field(default=1.0, validator=within(0))
    """Of a teacher: how much its tokens count in terms that draw to it."""
    backend: str = attrs.field(default="fsdp", validator=not_empty)
    """The training adapter that runs it; of a teacher also `vllm`, in a process of its own."""
    options: Mapping[str, Any] = _options()
    """The backend's settings: of a critic its own learning rate, schedule and clipping."""
    loss: NamedFunction = NamedFunction(name="value")
    """What a critic minimises."""
    aggregation: Mode = Mode.TOKEN_MEAN
    """How the loss of a critic becomes one number."""


@attrs.frozen(kw_only=True)
class AlgorithmSection:
    """What is optimised."""

    advantage: NamedFunction = NamedFunction(name="grpo")
    """Advantage estimator."""
    loss: NamedFunction = NamedFunction(name="ppo")
    """Policy loss."""
    aggregation: Mode | None = None
    """How the policy loss's units become one number; unset: what the loss's paper uses."""
    constant: float | None = attrs.field(default=None, validator=within(0, open_low=True))
    """Divisor of `seq-mean-token-sum-norm`, in tokens."""
    proximal: Start = Start.AUTO
    """Which policy a ratio starts from."""
    kl: KLSection = KLSection()
    """The pull towards the reference."""
    entropy: float = attrs.field(default=0.0, validator=within(0))
    """Weight of the entropy bonus; 0 leaves it out."""
    mask_cut: bool = False
    """Answers cut by their budget train nothing."""
    terms: tuple[TermSection, ...] = ()
    """Further summands of the objective."""
    zero_variance: ZeroVarianceSection = ZeroVarianceSection()
    """Groups whose scores are all equal."""
    shaping: tuple[NamedFunction, ...] = ()
    """What is added to the score that estimators see (`overlong`), with `name` and `options`."""
    correction: tuple[NamedFunction, ...] = ()
    """Weights, masks and gates against the sampler, each with `name` and `options`."""
    controllers: tuple[NamedFunction, ...] = ()
    """What moves a coefficient from step to step: `adaptive_kl`, `adaptive_entropy`."""


@attrs.frozen(kw_only=True)
class AsynchronySection:
    """How far generation may run ahead of training."""

    max_staleness: float = attrs.field(default=0.0, validator=within(0))
    """Versions that a trained token may be old; 0 is on-policy."""
    order: Order = Order.SUBMISSION
    """Which finished group is trained next."""
    window: int | None = attrs.field(default=None, validator=within(1))
    """For order `window`, which needs it: younger groups that may pass the oldest one, plus one."""
    placement: Placement = Placement.SEPARATE
    """Whether generation and training have devices of their own."""
    on_update: OnUpdate = OnUpdate.KEEP
    """What becomes of running answers when weights change."""


@attrs.frozen(kw_only=True)
class EvaluationSection:
    """How held-out prompts are asked."""

    every: int = attrs.field(default=0, validator=within(0))
    """Steps between evaluations; 0 evaluates at the end only."""
    before: bool = True
    """Evaluate once before the first step."""
    samples: int = attrs.field(default=1, validator=within(1))
    """Answers a prompt."""
    sampling: Mapping[str, Any] = _options()
    """What is drawn otherwise than in training: `temperature: 0` is greedy (see below)."""
    side: Side = Side.ROLLOUT
    """Who answers; for the first and the last one training waits whoever it is."""


@attrs.frozen(kw_only=True)
class CheckpointSection:
    """When and where the state is saved."""

    every: int = attrs.field(default=50, validator=within(0))
    """Steps between saves; 0 saves at the end and on Ctrl-C only."""
    kind: str = attrs.field(default="local", validator=not_empty)
    """The checkpoint adapter."""
    options: Mapping[str, Any] = _options()
    """The store's own settings, such as how many saves it keeps."""
    export: bool = True
    """Write the last step's weights as a model folder, `model`, into the run's folder."""


@attrs.frozen(kw_only=True)
class PlatformSection:
    """The hardware."""

    kind: str = attrs.field(default="cpu", validator=not_empty)
    """The platform adapter."""
    options: Mapping[str, Any] = _options()
    """The platform's own settings, such as threads."""


@attrs.frozen(kw_only=True)
class ClusterSection:
    """Where the processes run, if there is more than one."""

    kind: str = attrs.field(default="local", validator=not_empty)
    """The cluster adapter."""
    options: Mapping[str, Any] = _options()
    """The cluster's own settings, such as an address."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Everything that a run is made from."""

    run: RunSection = RunSection()
    """Name, folder, seed, length."""
    model: ModelSection
    """The policy's model."""
    models: tuple[FurtherModel, ...] = ()
    """Models beside the policy: a critic, a teacher."""
    data: DataSection
    """Prompts."""
    reward: Adapter | None = None
    """What an answer is worth; a configuration of `fit` needs none but to evaluate."""
    rollout: RolloutSection = RolloutSection()
    """Generation."""
    training: TrainingSection = TrainingSection()
    """Learning."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """The objective."""
    asynchrony: AsynchronySection = AsynchronySection()
    """Freshness."""
    evaluation: EvaluationSection = EvaluationSection()
    """Held-out measurements."""
    checkpoint: CheckpointSection = CheckpointSection()
    """Saves."""
    trackers: tuple[Adapter, ...] = (Adapter(kind="console"), Adapter(kind="jsonl"))
    """Where numbers and samples go."""
    platform: PlatformSection = PlatformSection()
    """The hardware."""
    cluster: ClusterSection = ClusterSection()
    """Processes beyond the first."""


def further_model(config: RunConfig, role: ModelRole) -> FurtherModel | None:
    """The model of a role; None where the run has none."""
    return next((model for model in config.models if model.role is role), None)
