"""One run of TRL's GRPOTrainer with clocks on its steps; runs in the peers' environment.

A child process of `step.py` and `demo.py`, which give it the model, the questions and the same
hyper-parameters as the library's own run. AdamW (0.9, 0.95), no decay, gradient norm 1, a constant
learning rate, clip 0.2, no KL; the loss is a mean over the tokens of the whole step.
"""

from __future__ import annotations

import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from measure import Spent, now
from record import Step, job_of, of

NOTHING = Spent(0.0, 0.0)


class Clock:
    """Times of steps and of the generation in each."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.reward, self.tokens = 0.0, 0
        self._since, self._generate = now(), NOTHING

    def start(self) -> None:
        self._since = now()

    def on_generation(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = now()
            made = generate(*args, **kwargs)
            self._generate += now() - began
            return made

        return timed

    def end_step(self) -> None:
        """A step is over, and the next one begins."""
        spent = now() - self._since
        parts = {"generate": self._generate, "the rest": spent - self._generate}
        self.steps.append(Step(spent, self.reward, self.tokens, parts))
        self._since, self._generate = now(), NOTHING


def last_integer(text: str) -> str | None:
    """The text's last number without a sign."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


def reward_function(clock: Clock, *, noise: bool) -> Callable[..., list[float]]:
    """Random rewards, or 1 for a right last number; the clock learns the mean of a step."""
    draw = random.Random(0)

    def reward(completions: Any, completion_ids: Any, truth: Any, **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        right = [float(last_integer(text) == one) for text, one in zip(texts, truth, strict=True)]
        rewards = [draw.random() for _ in texts] if noise else right
        clock.reward = sum(rewards) / len(rewards)
        clock.tokens = sum(map(len, completion_ids))
        return rewards

    return reward


def settings(job: dict[str, Any], folder: str) -> Any:
    """TRL's configuration of the job."""
    from trl import GRPOConfig

    batch = job["prompts"] * job["samples"]
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=job.get("autocast", False),
        seed=job.get("seed", 0),
        per_device_train_batch_size=job["micro"],
        gradient_accumulation_steps=batch // job["micro"],
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        generation_kwargs={"min_new_tokens": job.get("min_new_tokens", 0)},
        temperature=1.0,
        max_steps=job["steps"],
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",
        gradient_checkpointing=False,
        use_vllm=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


def main() -> None:
    """Run the job that the argument describes."""
    began, job = Spent(time.perf_counter(), 0.0), job_of(sys.argv[1])
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    dtype = torch.float32 if job.get("full_precision") else torch.bfloat16
    clock, until = Clock(), job.get("until")
    truths = job.get("truths") or [""] * len(job["questions"])
    rows = [
        {"prompt": [{"role": "user", "content": text}], "truth": truth}
        for text, truth in zip(job["questions"], truths, strict=True)
    ]

    class Watch(TrainerCallback):
        """Ends the clock's steps, and the run once the reward is reached."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.end_step()
            last = [step.reward for step in clock.steps[-3:]]
            if until is not None and len(last) == 3 and sum(last) / 3 >= until:
                control.should_training_stop = True

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype),
            processing_class=AutoTokenizer.from_pretrained(job["model"]),
            reward_funcs=reward_function(clock, noise=job.get("noise", False)),
            args=settings(job, folder),
            train_dataset=Dataset.from_list(rows),
            callbacks=[Watch()],
        )
        trainer._generate = clock.on_generation(trainer._generate)
        trainer.train()
    of(clock.steps, (), began, now()).write()


if __name__ == "__main__":
    main()
