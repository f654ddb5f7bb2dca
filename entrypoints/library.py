"""hexpo from Python: build a run, change its parts, train it, get its numbers back.

    run = build("addition.yaml", "run.steps=20", reward=my_reward)
    run.container.tracker.override(my_tracker)  # any other part, on this run only
    report = run.train()
    report.history[-1]["reward/mean"]

Nothing is loaded before a method needs it, and nothing global is changed: two runs may live in one
process, one after the other or side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hexpo.application.chat import Conversation
from hexpo.application.evaluate import EvaluationReport
from hexpo.application.export import ENGINE, export, write_model
from hexpo.application.fit import Fit, FitReport
from hexpo.application.ports.reward import RewardFunction
from hexpo.application.ports.rollout import RolloutEngine
from hexpo.application.schedule import RunReport
from hexpo.application.train import Trainer
from hexpo.domain.errors import (
    ConfigurationError,
    DataError,
    MissingExtra,
    ModelError,
    RewardUnavailable,
)
from hexpo.infrastructure import runs
from hexpo.infrastructure.config import check, fitting
from hexpo.infrastructure.config.given_reward import with_reward
from hexpo.infrastructure.config.load import Resolved, load, write
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.config.structure import plain
from hexpo.infrastructure.container import Container, container_of, renew

log = logging.getLogger(__name__)

T = TypeVar("T")

R = TypeVar("R", RunReport, FitReport)

TO_MEND = (ConfigurationError, DataError, MissingExtra, ModelError, RewardUnavailable)
"""What a user sets right before the next start."""

Source = RunConfig | Path | str | Mapping[str, Any]
"""A typed configuration, a YAML file, or its content."""

Reward = RewardFunction | Callable[..., object]
"""A grader, or a function of the kind that a configuration names."""


class Run:
    """One run: its configuration, its container, and what can be done with it."""

    def __init__(
        self,
        resolved: Resolved,
        folder: Path,
        *,
        console: object = None,
        is_folder_new: bool = False,
    ) -> None:
        self.resolved, self._is_folder_new = resolved, is_folder_new
        self.folder = folder
        self.container: Container = container_of(resolved.config, folder, console=console)
        self._stop_asked = self._is_used = False
        self._running: Callable[[], object] | None = None
        """Stops what runs, from any thread."""

    @property
    def config(self) -> RunConfig:
        """What the run is made from."""
        return self.resolved.config

    def train(self) -> RunReport:
        """Train to the end, from the newest checkpoint if there is one. See `train_async`."""
        return _block(self.train_async())

    def fit(self) -> FitReport:
        """Learn from given answers, from the newest checkpoint if there is one. See `fit_async`."""
        return _block(self.fit_async())

    def evaluate(self) -> EvaluationReport:
        """Measure held-out prompts. See `evaluate_async`."""
        return _block(self.evaluate_async())

    def export(self, folder: Path | str) -> int:
        """Write the newest checkpoint as a model folder; returns its step."""
        return _block(self.export_async(Path(folder)))

    def stop(self) -> None:
        """End training after the step that is being trained, and save. From any thread."""
        self._stop_asked = True
        if (running := self._running) is not None:
            running()

    async def train_async(self) -> RunReport:
        """Train, leave a whole run folder behind, and free everything.

        Returns: metrics of every step of this process, and the first and last evaluation.
        Raises: ConfigurationError, MissingExtra, DataError, ModelError: before the first step.
            Whatever failed first, as it was raised.
        """
        require_use(self.config, fits=False)

        async def run() -> RunReport:
            self._fail_early()
            await self.container.processes().start(teaching=True)
            trainer: Trainer = self.container.trainer()
            self._begin(trainer)
            return await trainer.run()

        return await self._kept(run)

    async def fit_async(self) -> FitReport:
        """Learn from given answers, leave a whole run folder behind, and free everything.

        Returns: metrics of every step of this process, and of the first and last evaluation.
        Raises: ConfigurationError, MissingExtra, DataError, ModelError: before the first step.
            Whatever failed first, as it was raised.
        """
        require_use(self.config, fits=True)

        async def run() -> FitReport:
            self.container.rows()  # every row is read before a model loads
            self.container.held_out_rows()
            await self.container.processes().start()
            fit: Fit = self.container.fit()
            self._begin(fit)
            return await fit.run()

        return await self._kept(run)

    def _begin(self, running: Trainer | Fit) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            with contextlib.suppress(RuntimeError):  # its loop ended meanwhile, and so did the run
                loop.call_soon_threadsafe(running.stop)

        self._running = stop
        if self._stop_asked:
            running.stop()

    async def _kept(self, run: Callable[[], Awaitable[R]]) -> R:
        """Run it in the run's folder, which says how it ended; everything is freed."""
        self._begin_use()
        is_new = not (self.folder / runs.CONFIG).exists()
        self._prepare_folder()
        try:
            report = await run()
            if report.finished and self.config.checkpoint.export:
                await self._export_model()
        except BaseException as error:
            is_stop = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
            state = runs.State.INTERRUPTED if is_stop else runs.State.FAILED
            self._mark_end(state, error=f"{type(error).__name__}: {error}")
            if is_new and isinstance(error, TO_MEND):
                runs.discard_unused(self.folder)  # the mended start gets its name
            raise
        finally:
            self._running, self._stop_asked = None, False
            await self.container.opened().close()
        self._mark_end(runs.State.FINISHED if report.finished else runs.State.INTERRUPTED)
        return report

    async def evaluate_async(self) -> EvaluationReport:
        """Measure held-out prompts with the newest checkpoint, or with the model as it is.

        Raises: ConfigurationError: the run has no held-out prompts, or is a reward model's.
        """
        self._require_answers()
        self._begin_use()
        try:
            self._fail_early()
            if self.container.held_out_prompts() is None:
                raise _nothing_held_out()
            await self.container.processes().start()
            await self._load_newest()
            evaluator = self.container.evaluator()
            if evaluator is None:
                raise _nothing_held_out()
            report: EvaluationReport = await evaluator.run(self.container.tracker())
            return report
        finally:
            await self.close()

    async def export_async(self, folder: Path) -> int:
        """Write the newest checkpoint as a Hugging Face folder; returns its step.

        Raises: CheckpointError: there is none.
        """
        self._begin_use()
        try:
            await self.container.processes().start(answering=False)
            return await export(
                folder,
                engine=self.container.training(),
                tokenizer=self.container.tokenizer(),
                checkpoints=self.container.checkpoints(),
            )
        finally:
            await self.close()

    async def open_conversation(self) -> Conversation:
        """Load the newest checkpoint and start a dialogue. Call `close` in the end."""
        self._require_answers()
        self._begin_use()
        try:
            await self.container.processes().start()
            await self._load_newest()
        except BaseException:
            await self.close()
            raise
        return Conversation(
            self.container.rollout(),
            self.container.tokenizer(),
            sampling=self.container.evaluation_sampling(),
            seed=self.config.run.seed,
        )

    def _begin_use(self) -> None:
        """What an earlier use closed is made again."""
        if self._is_used:
            renew(self.container)
        self._is_used = True

    def _require_answers(self) -> None:
        if fitting.is_fit(self.config) and fitting.needs_value_head(self.config):
            raise ConfigurationError(
                f"algorithm.loss.name: {self.config.algorithm.loss.name} makes a reward model that"
                " gives no answers; its export is a reward: {kind: model, options: {path: FOLDER}}"
            )

    async def close(self) -> None:
        """Free what `open_conversation` made. A new run's folder that stayed empty goes."""
        await self.container.opened().close()
        if self._is_folder_new:
            runs.discard_empty(self.folder)

    def _prepare_folder(self) -> None:
        runs.require_free(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.config, self.folder / runs.CONFIG)
            runs.mark(self.folder, runs.State.RUNNING, steps=self.config.run.steps)
        except OSError as error:
            raise ConfigurationError(
                f"the run folder {self.folder} cannot be written ({error}); make room there, or set"
                " run.folder to another place"
            ) from error

    def _mark_end(self, state: runs.State, *, error: str = "") -> None:
        try:
            runs.mark(self.folder, state, error=error)
        except OSError as full:  # it must not hide how the run ended
            log.warning("%s does not say that the run is %s: %s", self.folder, state.value, full)

    def _fail_early(self) -> None:
        """Make what is cheap and can be wrong before anything is loaded."""
        self.container.train_prompts()
        self.container.held_out_prompts()
        self.container.reward()

    async def _export_model(self) -> None:
        """The weights as they are, whole or not at all."""
        unfinished = self.folder / f".{runs.MODEL}"
        await write_model(
            unfinished, engine=self.container.training(), tokenizer=self.container.tokenizer()
        )
        await asyncio.to_thread(runs.replace, unfinished, self.folder / runs.MODEL)

    async def _load_newest(self) -> None:
        checkpoint = await self.container.checkpoints().latest()
        if checkpoint is None:
            return
        engine, rollout = self.container.training(), self.container.rollout()
        await engine.load(checkpoint.folder / ENGINE)
        log.info("loaded the checkpoint of step %d", checkpoint.step)
        await rollout.pause(self.config.asynchrony.on_update.pause_mode)
        await self.container.transfer().transfer(checkpoint.step)  # each step published a version
        await rollout.resume()


def build(
    config: Source,
    *overrides: str,
    folder: Path | str | None = None,
    console: object = None,
    fits: bool | None = None,
    reward: Reward | None = None,
    rollout: RolloutEngine | None = None,
) -> Run:
    """A run that is ready to train or fit: resolved, checked, and composed; nothing is loaded.

    Args: config: see `Source`. overrides: `section.key=value`, values in YAML.
        folder: the run's folder; None makes a new one below `run.folder`.
        console: a rich console for what shows progress.
        fits: refuse a configuration that is none of `fit` (or, false, one that is).
        reward: the application's own grader, which need not be configured then: a function of a
            module that can be imported, or an object with `grade` and `close`.
        rollout: the application's own engine. Any other part: `run.container.<part>.override`.
    Raises: ConfigurationError: every conflict at once.
    """
    if reward is not None and not hasattr(reward, "grade"):
        source = plain(config) if isinstance(config, RunConfig) else config
        config, reward = with_reward(source, reward), None
    resolved = resolve(config, *overrides)
    if fits is not None:
        require_use(resolved.config, fits=fits)
    check.require_sound(resolved.config, brings_reward=reward is not None)
    section = resolved.config.run
    home = Path(folder) if folder else runs.create(Path(section.folder), section.name)
    run = Run(resolved, home, console=console, is_folder_new=not folder)
    if reward is not None:
        run.container.reward.override(reward)
    if rollout is not None:
        run.container.rollout.override(rollout)
    return run


def resume(
    run: Path | str,
    *overrides: str,
    parent: Path | str = "runs",
    console: object = None,
    reward: Reward | None = None,
    rollout: RolloutEngine | None = None,
) -> Run:
    """A run that goes on in its own folder, from its newest checkpoint.

    Args: run: its folder, or its name below `parent`. overrides: on top of its configuration.
        console, reward, rollout: see `build`.
    Raises: ConfigurationError: there is no such run, or an override does not fit.
    """
    folder = runs.find(run, parent=Path(parent))
    return build(
        folder / runs.CONFIG,
        *overrides,
        folder=folder,
        console=console,
        reward=reward,
        rollout=rollout,
    )


def resolve(config: Source, *overrides: str) -> Resolved:
    """A configuration with all defaults, and where each value came from; checks only types."""
    source = plain(config) if isinstance(config, RunConfig) else config
    return load(source, overrides=overrides)


def require_use(config: RunConfig, *, fits: bool) -> None:
    """Raises ConfigurationError: the loss belongs to the other use case."""
    loss = config.algorithm.loss.name
    if fitting.is_fit(config) and not fits:
        raise ConfigurationError(
            f"algorithm.loss.name: {loss} learns from given answers; use hexpo fit (`Run.fit`)"
        )
    if fits and not fitting.is_fit(config):
        raise ConfigurationError(
            f"algorithm.loss.name: {loss} learns from answers that the policy gives; use hexpo"
            " train (`Run.train`), or a loss of fit: sft, dpo, ... (see hexpo algorithms fit)"
        )


def _nothing_held_out() -> ConfigurationError:
    return ConfigurationError(
        "this configuration has no held-out prompts; set data.evaluation.kind and its options"
    )


def _block(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end from ordinary code. Raises ConfigurationError inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise ConfigurationError(
        "this thread has a running event loop (a notebook, a server); await the method that ends"
        " in _async instead"
    )
