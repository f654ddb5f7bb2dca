"""The composition root: which part needs which. The only module that knows the container library.

An embedding application overrides a provider of a container *instance*, never of the class:

    run.container.reward.override(my_reward)

Every provider makes its part once, when it is first asked for; an overridden part, and what only
it needs, is never made.
"""

from __future__ import annotations

from pathlib import Path

from dependency_injector import containers, providers

from hexpo.application.fit import Fit
from hexpo.infrastructure import engines, fitting, learners, parts
from hexpo.infrastructure.config import drawing
from hexpo.infrastructure.config.algorithm import choices_of, estimators_of, objective_of
from hexpo.infrastructure.config.moving import moving_of
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.opened import Opened
from hexpo.infrastructure.processes import Processes


class Container(containers.DeclarativeContainer):
    """A run in one process."""

    config = providers.Dependency(instance_of=RunConfig)
    """What the run is made from."""
    folder = providers.Dependency(instance_of=Path)
    """The run's folder."""
    console: providers.Provider[object] = providers.Object(None)
    """A rich console for trackers that show something; None: standard output."""

    opened = providers.Singleton(Opened)
    """What has to be closed."""

    # What is optimised
    objective = providers.Singleton(objective_of, config)
    estimators = providers.Singleton(estimators_of, config)
    choices = providers.Singleton(choices_of, config)
    moving = providers.Singleton(moving_of, config)
    columns = providers.Singleton(learners.columns_read, objective, estimators, choices)

    # Prompts and graders, which fail early and cheaply
    train_prompts = providers.Singleton(parts.make_source, config, config.provided.data.train)
    held_out_prompts = providers.Singleton(
        parts.make_source, config, config.provided.data.evaluation
    )
    reward = providers.Singleton(parts.make_reward, config, opened)

    # Technology
    platform = providers.Singleton(parts.make_platform, config)
    tokenizer = providers.Singleton(parts.make_tokenizer, config)
    policy = providers.Singleton(parts.make_policy, config, platform)
    store = providers.Singleton(parts.make_store, config)
    processes = providers.Singleton(
        Processes,
        config,
        folder,
        platform,
        opened,
        store=store.provider,
        tokenizer=tokenizer.provider,
        columns=columns.provider,
    )
    rollout = providers.Singleton(
        engines.make_rollout,
        config,
        policy.provider,
        tokenizer,
        opened,
        processes.provided.replicas,
    )
    training = providers.Singleton(
        engines.make_training,
        config,
        policy.provider,
        store,
        tokenizer,
        platform,
        columns,
        opened,
        processes.provided.ranks,
    )
    critic = providers.Singleton(
        learners.make_critic, config, store, tokenizer, platform, columns, opened
    )
    teacher = providers.Singleton(
        learners.make_teacher,
        config,
        store,
        tokenizer,
        platform,
        columns,
        train_prompts,
        processes.provided.teachers,
    )
    transfer = providers.Singleton(
        engines.make_transfer,
        config,
        training,
        rollout,
        processes.provided.replicas,
        opened,
        host=processes.provided.host,
    )
    checkpoints = providers.Singleton(parts.make_checkpoints, config, folder)
    tracker = providers.Singleton(parts.make_tracker, config, folder, console)

    # Use cases
    source = providers.Singleton(parts.fit_source, config, train_prompts, tokenizer)
    held_out = providers.Singleton(parts.fit_source, config, held_out_prompts, tokenizer)
    sampling = providers.Singleton(drawing.training_sampling, config)
    evaluation_sampling = providers.Singleton(drawing.evaluation_sampling, config)
    agent = providers.Singleton(parts.make_agent, config, rollout, tokenizer, sampling, "train")
    examinee = providers.Singleton(
        engines.make_examinee, config, rollout, policy.provider, tokenizer, opened
    )
    evaluation_agent = providers.Singleton(
        parts.make_agent, config, examinee, tokenizer, evaluation_sampling, "evaluate"
    )
    greedy_agent = providers.Singleton(
        parts.make_greedy_agent, config, rollout, tokenizer, sampling, estimators
    )
    player = providers.Singleton(parts.make_player, config, agent, reward, greedy_agent)
    evaluation_player = providers.Singleton(
        parts.make_player, config, evaluation_agent, reward, None
    )
    evaluator = providers.Singleton(
        parts.make_evaluator,
        config,
        held_out,
        evaluation_player,
        rollout,
        examinee,
        reward=reward,
        tokenizer=tokenizer,
        sampling=evaluation_sampling,
    )
    residency = providers.Singleton(engines.make_residency, config, training, rollout.provider)
    probe = providers.Singleton(
        engines.make_probe,
        config,
        training=training,
        store=store,
        rollout=rollout,
        replicas=processes.provided.replicas,
        source=source,
        tokenizer=tokenizer,
    )
    rollouts = providers.Singleton(parts.make_rollouts, config, source, player)
    recipe = providers.Singleton(
        learners.make_recipe, config, training, critic, teacher, columns, estimators, choices
    )
    learner = providers.Singleton(
        learners.make_learner,
        config,
        training,
        critic,
        store,
        objective,
        recipe,
        moving,
        residency=residency,
    )
    trainer = providers.Singleton(
        parts.make_trainer,
        config,
        rollouts=rollouts,
        learner=learner,
        rollout=rollout,
        transfer=transfer,
        checkpoints=checkpoints,
        tracker=tracker,
        evaluator=evaluator,
        residency=residency,
        probe=probe.provider,
    )

    # Learning from given answers: nothing here makes a rollout
    reader = providers.Singleton(fitting.make_reader, config, tokenizer)
    rows = providers.Singleton(fitting.readable_source, config, train_prompts, reader)
    held_out_rows = providers.Singleton(fitting.readable_source, config, held_out_prompts, reader)
    scoring = providers.Singleton(fitting.make_scoring, config, training, store, recipe)
    reference_point = providers.Singleton(fitting.make_reference_point, objective, scoring)
    held_out_examples = providers.Singleton(
        fitting.make_held_out, held_out_rows, reader, objective, scoring, reference_point
    )
    fit_schedule = providers.Singleton(fitting.schedule_of, config)
    fit = providers.Singleton(
        Fit,
        fit_schedule,
        source=rows,
        reader=reader,
        learner=learner,
        checkpoints=checkpoints,
        tracker=tracker,
        held_out=held_out_examples,
        reference_point=reference_point,
    )


def renew(container: Container) -> None:
    """Forget the parts that were made, so that they are made again when they are next asked for;
    what an application put in their place stays."""
    for provider in container.providers.values():
        if isinstance(provider, providers.Singleton):
            provider.reset()


def container_of(config: RunConfig, folder: Path, *, console: object = None) -> Container:
    """A container of its own for one run."""
    container = Container(config=config, folder=folder)
    container.console.override(providers.Object(console))
    return container
