"""A teacher that a vLLM process serves, by configuration: over a stand-in for its process
everywhere, and for real where it is installed (`make test-engines`)."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hexpo.adapters.rollout.vllm import SERVE, Config, Scores, capabilities
from hexpo.adapters.simulated.world import SimulatedReward
from hexpo.application.ports.cluster import ProcessSpec
from hexpo.domain.errors import ConfigurationError, IllegalTransition
from hexpo.domain.trajectory import Scored
from hexpo.entrypoints.library import build

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
FORWARD = "algorithm.terms=[{name: d, loss: {name: forward_kl}, coefficient: 0.1}]"
SAMPLED = "algorithm.terms=[{name: d, loss: {name: sampled}, coefficient: 0.1}]"


class Engine:
    """In the place of a vLLM process: transformers reads the model and says the same."""

    def __init__(self, spec: ProcessSpec) -> None:
        import transformers

        self.spec, self.name, self.pid = spec, spec.name, 0
        self._config = Config(**spec.value["options"])
        model = transformers.AutoModelForCausalLM.from_pretrained(
            spec.value["model"], dtype=torch.float32
        )
        self._model = model.eval()
        self.inside = self.most = self.rows = 0
        self.is_closed = self.is_stopped = False

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await getattr(self, method)(*arguments, **options)

    async def describe(self) -> Any:
        return capabilities(self._config), 0, ()

    @torch.no_grad()
    async def score(self, ids: Sequence[int], *, top_k: int) -> Scores:
        assert 0 <= top_k <= self._config.top_k
        self.inside, self.rows = self.inside + 1, self.rows + 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        logprobs_LV = self._model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        top = logprobs_LV.topk(top_k)
        own_L = logprobs_LV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return Scores(
            logprobs=torch.cat([torch.zeros(1), own_L]),
            top_ids=torch.cat([torch.full((1, top_k), -1), top.indices]),
            top_logprobs=torch.cat([torch.zeros(1, top_k), top.values]),
        )

    async def close(self) -> None:
        self.is_closed = True

    async def stop(self) -> None:
        self.is_stopped = True


class Engines:
    """A cluster that starts nothing."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.started: list[Engine] = []

    async def start(self, specs: Sequence[ProcessSpec]) -> list[Engine]:
        self.started += [Engine(spec) for spec in specs]
        return self.started[-len(specs) :]

    async def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr("hexpo.infrastructure.processes.make_cluster", lambda *_: made)
    return made


def teacher(path: Path, *, backend: str = "vllm", **options: Any) -> str:
    if backend == "vllm":
        options = {"python": sys.executable, **options}
    one = {"role": "teacher", "path": str(path), "backend": backend, "options": options}
    return f"models={yaml.safe_dump([one], default_flow_style=True)}"


def history(tiny: dict[str, Any], *overrides: str) -> list[dict[str, float]]:
    run = build(tiny, *overrides)
    run.container.reward.override(SimulatedReward(lambda row: Scored(value=0.0)))
    return run.train().history


def assert_equal(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> None:
    assert len(ours) == len(theirs) == 2
    for one, other in zip(ours, theirs, strict=True):
        assert one["loss/d"] == pytest.approx(other["loss/d"], rel=1e-4)
        assert one["train/gradient_norm"] == pytest.approx(other["train/gradient_norm"], rel=1e-3)
        for name in ("samples", "unusable"):
            key = f"teacher/teacher/{name}"
            assert one[key] == other[key]


@pytest.mark.parametrize("term", [FORWARD, SAMPLED], ids=["forward_kl", "sampled"])
def test_a_served_teacher_pulls_as_one_beside_the_policy(
    tiny: dict[str, Any], other_model: Path, engines: Engines, term: str
) -> None:
    """S1, S4: the same losses and gradients; its engine is asked for so many rows at a time as it
    has slots, keeps its own settings, and ends with the run."""
    ours = history(tiny, term, teacher(other_model, slots=3, top_k=16))
    assert_equal(ours, history(tiny, term, teacher(other_model, backend="fsdp", top_k=16)))
    (engine,) = engines.started
    assert (engine.spec.name, engine.spec.entry) == ("teacher-teacher", SERVE)
    assert (engine.spec.value["model"], engine.spec.value["precision"]) == (
        str(other_model),
        "fp32",
    )
    assert engine.spec.python == sys.executable
    assert engine.spec.environment["VLLM_NO_USAGE_STATS"] == "1"
    assert (engine.most, engine.rows) == (3, 16)
    assert engine.is_closed
    assert engine.is_stopped


def test_what_needs_no_teacher_starts_none(
    tiny: dict[str, Any], other_model: Path, engines: Engines
) -> None:
    """An evaluation or a conversation asks the policy alone; a part that would ask is refused."""
    run = build(tiny, SAMPLED, teacher(other_model))
    asyncio.run(run.container.processes().start())
    assert not engines.started
    with pytest.raises(IllegalTransition, match=r"no engine serves teacher yet.*teaching=True"):
        run.container.teacher()


def test_a_teacher_with_another_tokenizer_is_refused_before_its_process_starts(
    tiny: dict[str, Any], other_model: Path, tmp_path: Path, engines: Engines
) -> None:
    """S7."""
    folder = tmp_path / "other"
    shutil.copytree(other_model, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "!")
    with pytest.raises(ConfigurationError, match="another tokenizer"):
        history(tiny, SAMPLED, teacher(folder))
    assert not engines.started


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        (
            {},
            ("rollout.temperature=0.7",),
            r"models\[0\]\.backend: vllm scores given ids at temperature 1",
        ),
        ({"top_k": 0}, (), r"models\[0\]\.options\.top_k: 0, but its likeliest"),
        ({"max_tokens": 72}, (), r"options\.max_tokens: 72.*use 73, or 0"),
        ({"sleep": True}, (), r"models\[0\]\.options\.sleep"),
        ({"adapter_rank": 8}, (), r"models\[0\]\.options\.adapter_rank"),
        ({"slts": 8}, (), r"models\[0\]\.options\.slts.*slots"),
        ({"python": ""}, (), r"models\[0\]\.backend: rollout/vllm: needs vllm.*hexpo\[vllm\]"),
        ({}, ("data.max_prompt_tokens=248",), r"reads 256 tokens.*rollout\.max_new_tokens=7"),
        (
            {},
            ("algorithm.kl={where: loss, estimator: full, target: teacher}",),
            "there is that of: reference",
        ),
        (
            {},
            ("algorithm.terms=[{name: d, loss: {name: jsd, options: {tail: false}}}]",),
            "takes kept ids for the whole vocabulary",
        ),
    ],
)
def test_what_an_engine_cannot_do_for_a_teacher_is_refused_before_anything_starts(
    tiny: dict[str, Any],
    other_model: Path,
    options: dict[str, Any],
    overrides: tuple[str, ...],
    message: str,
) -> None:
    """M2, M3, S7."""
    with pytest.raises(ConfigurationError, match=message):
        build(tiny, FORWARD, teacher(other_model, **options), *overrides)


def test_a_teacher_that_lacks_ids_of_the_policy_is_refused(
    tiny: dict[str, Any], other_model: Path, tmp_path: Path
) -> None:
    """S7: it could not read them."""
    config = json.loads((other_model / "config.json").read_text())
    folder = tmp_path / "smaller"
    shutil.copytree(other_model, folder)
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 250}))
    with pytest.raises(ConfigurationError, match=r"has 250 ids and the policy 260"):
        build(tiny, FORWARD, teacher(folder))


def test_a_critic_is_no_engine_s(tiny: dict[str, Any]) -> None:
    """M2: it learns."""
    critic = "models=[{role: critic, backend: vllm}]"
    with pytest.raises(ConfigurationError, match=r"models\[0\]\.backend.*no training adapter"):
        build(tiny, "algorithm.advantage={name: gae}", critic)


def wide_model(folder: Path) -> Path:
    """Of the tests' family, with heads of a width that vLLM has kernels for."""
    import transformers

    made: Path = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "make_tiny.py"))[
        "make"
    ](folder, seed=1)
    config = transformers.AutoConfig.from_pretrained(made)
    config.update({"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1})
    config.head_dim = 32
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(made)
    return made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("HEXPO_ENGINES" not in os.environ, reason="make test-engines")
@pytest.mark.skipif(not PYTHON.exists(), reason="there is no .venv-vllm: make test-engines")
def test_vllm_teaches_as_the_trainers_own_backend(tiny: dict[str, Any], tmp_path: Path) -> None:
    """S1, C1: two steps from a teacher in a vLLM process are two from the same one here, within
    single precision."""
    path = wide_model(tmp_path / "teacher")
    real = teacher(path, python=str(PYTHON), slots=4, top_k=16, cache_gib=0.1)
    ours = history(tiny, FORWARD, real, "cluster.options.oversubscribe=true")
    assert_equal(ours, history(tiny, FORWARD, teacher(path, backend="fsdp", top_k=16)))
