"""Keys of other libraries and of earlier versions, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hexpo.infrastructure.config.structure import Problem

REMOVED: Mapping[str, str] = MappingProxyType(
    {
        "rollout.n": "rollout.samples",
        "rollout.top_p": "rollout.sampling.top_p",
        "rollout.top_k": "rollout.sampling.top_k",
        "rollout.min_p": "rollout.sampling.min_p",
        "rollout.min_new_tokens": "rollout.sampling.min_new_tokens",
        "rollout.stop_texts": "rollout.sampling.stop_texts",
        "evaluation.beside": "evaluation.side: lease",
        "evaluation.k": "nothing: powers of two up to evaluation.samples are reported",
        "evaluation.temperature": "evaluation.sampling.temperature",
        "evaluation.top_p": "evaluation.sampling.top_p",
        "evaluation.max_new_tokens": "evaluation.sampling.max_new_tokens",
        "training.batch_size": "training.prompts_per_step (prompts, not sequences)",
    }
)
"""Keys that are gone, or that are often guessed."""

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_MODEL, _OPTIMIZER = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"

VERL: Mapping[str, str] = MappingProxyType(
    {
        "data.train_files": "data.train.options.paths",
        "data.val_files": "data.evaluation.options.paths",
        "data.prompt_key": "data.train.options.prompt",
        "data.reward_fn_key": "data.train.options.source",
        "data.train_batch_size": "training.prompts_per_step",
        "data.gen_batch_size": "algorithm.zero_variance.options.budget",
        "data.max_prompt_length": "data.max_prompt_tokens",
        "data.max_response_length": "rollout.max_new_tokens",
        "data.filter_overlong_prompts": "data.on_long=filter",
        "data.truncation": "data.on_long",
        "data.shuffle": "data.train.options.shuffle",
        "data.seed": "run.seed",
        f"{_MODEL}.path": "model.path",
        f"{_MODEL}.lora_rank": "training.options.lora.rank",
        f"{_MODEL}.lora_alpha": "training.options.lora.alpha",
        f"{_MODEL}.target_modules": "training.options.lora.targets",
        f"{_MODEL}.enable_gradient_checkpointing": "training.options.activation_checkpointing",
        f"{_MODEL}.use_remove_padding": "training.options.packing",
        f"{_ACTOR}.strategy": "training.backend",
        f"{_OPTIMIZER}.lr": "training.options.learning_rate",
        f"{_OPTIMIZER}.lr_warmup_steps": "training.options.warmup_steps",
        f"{_OPTIMIZER}.lr_scheduler_type": "training.options.schedule",
        f"{_OPTIMIZER}.warmup_style": "training.options.schedule",
        f"{_OPTIMIZER}.min_lr_ratio": "training.options.min_ratio",
        f"{_OPTIMIZER}.weight_decay": "training.options.weight_decay",
        f"{_OPTIMIZER}.betas": "training.options.beta_gradient, training.options.beta_square",
        f"{_ACTOR}.grad_clip": "training.options.clip_norm",
        f"{_ACTOR}.ppo_mini_batch_size": "training.updates_per_batch",
        f"{_ACTOR}.ppo_epochs": "training.epochs_per_batch",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "training.options.micro_tokens",
        f"{_ACTOR}.ppo_max_token_len_per_gpu": "training.options.micro_tokens",
        f"{_ACTOR}.use_dynamic_bsz": "nothing",
        f"{_ACTOR}.clip_ratio": "algorithm.loss.options.clip_low, algorithm.loss.options.clip_high",
        f"{_ACTOR}.clip_ratio_low": "algorithm.loss.options.clip_low",
        f"{_ACTOR}.clip_ratio_high": "algorithm.loss.options.clip_high",
        f"{_ACTOR}.clip_ratio_c": "algorithm.loss.options.dual_clip",
        f"{_ACTOR}.policy_loss.loss_mode": "algorithm.loss.name",
        f"{_ACTOR}.loss_agg_mode": "algorithm.aggregation",
        f"{_ACTOR}.loss_scale_factor": "algorithm.constant",
        f"{_ACTOR}.entropy_coeff": "algorithm.entropy",
        f"{_ACTOR}.use_kl_loss": "algorithm.kl.where=loss",
        f"{_ACTOR}.kl_loss_coef": "algorithm.kl.coefficient",
        f"{_ACTOR}.kl_loss_type": "algorithm.kl.estimator",
        f"{_ACTOR}.ulysses_sequence_parallel_size": "training.options.sequence_parallel",
        f"{_ACTOR}.fsdp_config.param_offload": "training.options.cpu_offload",
        f"{_ACTOR}.fsdp_config.optimizer_offload": "training.options.cpu_offload",
        f"{_ROLLOUT}.name": "rollout.engine",
        f"{_ROLLOUT}.n": "rollout.samples",
        f"{_ROLLOUT}.temperature": "rollout.temperature",
        f"{_ROLLOUT}.top_p": "rollout.sampling.top_p",
        f"{_ROLLOUT}.top_k": "rollout.sampling.top_k",
        f"{_ROLLOUT}.tensor_model_parallel_size": "rollout.options.tensor_parallel",
        f"{_ROLLOUT}.gpu_memory_utilization": "rollout.options.memory_share",
        f"{_ROLLOUT}.max_model_len": "rollout.options.max_tokens",
        f"{_ROLLOUT}.max_num_seqs": "rollout.options.slots",
        f"{_ROLLOUT}.enforce_eager": "rollout.options.eager",
        f"{_ROLLOUT}.free_cache_engine": "asynchrony.placement=colocated",
        f"{_ROLLOUT}.calculate_log_probs": "nothing",
        f"{_ROLLOUT}.val_kwargs.n": "evaluation.samples",
        f"{_ROLLOUT}.val_kwargs.temperature": "evaluation.sampling.temperature",
        f"{_ROLLOUT}.val_kwargs.top_p": "evaluation.sampling.top_p",
        f"{_ROLLOUT}.val_kwargs.do_sample": "evaluation.sampling.temperature",
        "algorithm.adv_estimator": "algorithm.advantage.name",
        "algorithm.norm_adv_by_std_in_grpo": "algorithm.advantage.options.scale",
        "algorithm.gamma": "algorithm.advantage.options.gamma",
        "algorithm.lam": "algorithm.advantage.options.lam",
        "algorithm.use_kl_in_reward": "algorithm.kl.where=reward",
        "algorithm.kl_penalty": "algorithm.kl.estimator",
        "algorithm.kl_ctrl.kl_coef": "algorithm.kl.coefficient",
        "algorithm.kl_ctrl.type": "algorithm.controllers",
        "algorithm.filter_groups.enable": "algorithm.zero_variance.treatment=resample",
        "algorithm.filter_groups.metric": "nothing",
        "algorithm.filter_groups.max_num_gen_batches": "algorithm.zero_variance.options.budget",
        "algorithm.rollout_correction.rollout_is": "algorithm.correction",
        "algorithm.rollout_correction.rollout_is_threshold": "algorithm.correction",
        "algorithm.rollout_correction.rollout_rs": "algorithm.correction",
        "algorithm.rollout_correction.bypass_mode": "algorithm.proximal=behaviour",
        "critic.model.path": "models",
        "critic.optim.lr": "models",
        "critic.cliprange_value": "models",
        "reward_model.reward_manager": "reward.kind",
        "reward_model.overlong_buffer.len": "algorithm.shaping",
        "reward_model.reward_kwargs.overlong_buffer_cfg.len": "algorithm.shaping",
        "custom_reward_function.path": "reward.options.function",
        "custom_reward_function.name": "reward.options.function",
        "custom_reward_function.reward_kwargs": "reward.options.arguments",
        "trainer.total_epochs": "run.steps",
        "trainer.total_training_steps": "run.steps",
        "trainer.save_freq": "checkpoint.every",
        "trainer.max_actor_ckpt_to_keep": "checkpoint.options.keep",
        "trainer.test_freq": "evaluation.every",
        "trainer.val_before_train": "evaluation.before",
        "trainer.log_val_generations": "nothing",
        "trainer.logger": "trackers",
        "trainer.project_name": "run.folder",
        "trainer.experiment_name": "run.name",
        "trainer.default_local_dir": "run.folder",
        "trainer.n_gpus_per_node": "training.ranks, rollout.replicas",
        "trainer.nnodes": "training.ranks, rollout.replicas",
        "trainer.balance_batch": "nothing",
        "trainer.device": "platform.kind",
    }
)
"""verl's keys and hexpo's; `nothing` is needed where hexpo always does it. The page
docs/coming-from-verl.md says more of each."""

SECTIONS = ("actor_rollout_ref", "critic", "custom_reward_function", "reward_model", "trainer")
"""Sections that verl has and hexpo has not."""

_PAGE = "docs/coming-from-verl.md"


def foreign(keys: Sequence[str]) -> list[Problem]:
    """What is wrong with those of the dotted keys that are another library's, or gone.

    Hydra's `+key` is read as `key`.
    """
    found = []
    for key in keys:
        plain = key.lstrip("+")
        if plain in REMOVED:
            found.append(Problem(key, f"is no key any more; use {REMOVED[plain]}"))
        elif plain in VERL:
            found.append(Problem(key, f"is verl's; use {VERL[plain]} (see {_PAGE})"))
        elif plain.partition(".")[0] in SECTIONS:
            found.append(Problem(key, f"is verl's; {_PAGE} says what stands for it, if anything"))
    return found


def without(values: Mapping[str, object], gone: Sequence[str]) -> dict[str, object]:
    """The values without some dotted keys, and without sections that are empty then."""
    kept: dict[str, object] = dict(values)
    for key in gone:
        head, _, rest = key.partition(".")
        below = kept.get(head)
        if rest and isinstance(below, Mapping):
            kept[head] = without(below, [rest])
        if not rest or not kept[head]:
            kept.pop(head, None)
    return kept
