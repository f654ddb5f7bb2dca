"""The page for users of verl: its table is the code's, its presets are sound, its reward grades."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from hexpo.adapters.rewards.python import grader
from hexpo.domain.errors import ConfigurationError
from hexpo.infrastructure import find
from hexpo.infrastructure.config.check import problems
from hexpo.infrastructure.config.elsewhere import SECTIONS, VERL
from hexpo.infrastructure.config.filtering import Filtering
from hexpo.infrastructure.config.load import Resolved, keys, load
from hexpo.infrastructure.config.options import entry
from hexpo.infrastructure.config.schema import RunConfig
from hexpo.infrastructure.plan import arithmetic

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from-verl.md").read_text()
PRESETS = ROOT / "examples" / "presets"
MODEL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 32768,
}
ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "What is 70 + 2? End with #### and the number."}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 3},
}


@pytest.fixture
def preset(tmp_path: Path) -> Any:
    """Loads a preset with a model and with rows of verl's schema in the place of its own."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    rows = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([ROW]), rows)

    def resolved(name: str) -> Resolved:
        return load(
            PRESETS / f"{name}.yaml",
            overrides=[
                f"model.path={tmp_path / 'model'}",
                f"data.train.options.paths=[{rows}]",
                f"data.evaluation.options.paths=[{rows}]",
            ],
        )

    return resolved


@pytest.mark.parametrize(
    ("name", "answers", "updates"),
    [
        ("dapo", 512 * 16, 16),
        ("dr-grpo", 128 * 8, 8),
        ("gspo", 128 * 16, 4),
        ("verl-grpo", 1024 * 5, 4),
    ],
)
def test_every_preset_is_sound_and_has_its_arithmetic(
    preset: Any, name: str, answers: int, updates: int
) -> None:
    """M3: what the page asks a reader to plan has no conflict."""
    config = preset(name).config
    assert problems(config) == []
    made = arithmetic(config)
    assert (made["sequences_per_step"], made["updates_per_step"]) == (answers, updates)


def test_there_is_no_preset_that_the_page_does_not_name() -> None:
    """Each is a link on the page."""
    named = set(re.findall(r"\(\.\./examples/presets/(.*?)\.yaml\)", PAGE))
    assert named == {path.stem for path in PRESETS.glob("*.yaml")}


def test_a_prompt_of_verls_rows_reaches_the_grader_with_its_truth(preset: Any) -> None:
    """E: `reward_model.ground_truth` is the truth, `data_source` the source, the rest is kept."""
    source = preset("verl-grpo").config.data.train
    module = find.adapter("prompts", source.kind)
    (prompt,) = module.build(module.Config(**source.options), seed=0).rows()
    assert (prompt.truth, prompt.source) == ("72", "openai/gsm8k")
    assert prompt.messages[0].content == ROW["prompt"][0]["content"]  # type: ignore[index]
    assert prompt.extra["extra_info"] == ROW["extra_info"]


@pytest.mark.parametrize(("answer", "score"), [("70 + 2 is 72. #### 72", 1.0), ("72", 0.0)])
def test_the_pages_reward_runs_as_it_stands(answer: str, score: float, tmp_path: Path) -> None:
    """K: verl's parameters are known by their names."""
    (name, code), *_ = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / name).write_text(code)
    grade = grader.make(f"{tmp_path / name}:compute_score", {}, truth_as="truth", chat=True)
    sample = {"answer": answer, "source": "openai/gsm8k", "truth": "72", "extra": {}}
    assert grade(sample) == score


def table() -> dict[str, str]:
    """verl's key and hexpo's, of each row of the page's table of keys."""
    text = PAGE.partition("\n## Keys\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \|", text, flags=re.MULTILINE)
    found = dict(rows)
    assert len(found) == len(rows)
    return found


def test_the_page_and_the_messages_say_the_same() -> None:
    """M1: one table, twice."""
    assert table() == dict(VERL)


def options() -> set[str]:
    """Options that the table may name, by their dotted keys."""
    places = [
        ("data.train", "prompts", "parquet"),
        ("data.evaluation", "prompts", "parquet"),
        ("training", "training", "fsdp"),
        ("rollout", "rollout", "vllm"),
        ("checkpoint", "checkpoints", "local"),
        ("reward", "rewards", "python"),
    ]
    known = {
        f"{at}.options.{field.name}"
        for at, port, kind in places
        for field in attrs.fields(find.config_type(port, kind))  # type: ignore[arg-type]
    }
    known |= {f"training.options.lora.{name}" for name in ("rank", "alpha", "targets")}
    for at, of, name in (
        ("advantage", "advantage estimator", "grpo"),
        ("advantage", "advantage estimator", "gae"),
        ("loss", "policy loss", "ppo"),
    ):
        known |= {f"algorithm.{at}.options.{key}" for key in entry(of, name).options}
    known |= {f"algorithm.zero_variance.options.{field.name}" for field in attrs.fields(Filtering)}
    return known | {f"evaluation.sampling.{name}" for name in ("temperature", "top_p")}


def test_every_key_that_the_table_sends_to_exists() -> None:
    """M1: no reader is sent to a key that is not there."""
    known = {*keys(RunConfig), *options(), "rollout.sampling.top_p", "rollout.sampling.top_k"}
    targets = {one.partition("=")[0] for here in VERL.values() for one in here.split(", ")}
    assert targets - known == {"nothing"}


def test_a_key_of_verls_is_refused_with_ours() -> None:
    """M1: and with nothing else said about it; Hydra's plus changes nothing."""
    rows = {"kind": "jsonl", "options": {"paths": ["rows.jsonl"]}}
    given = {"model": {"path": "model"}, "data": {"train": rows}}
    for key in VERL:
        for spelt in (key, f"+{key}"):
            with pytest.raises(ConfigurationError) as caught:
                load(given, overrides=[f"{spelt}=1"])
            (line,) = str(caught.value).splitlines()[1:]
            assert line.startswith(f"  - {spelt}: is verl's; use {VERL[key]}")


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_of_a_section_of_verls_leads_to_the_page(section: str) -> None:
    """M1."""
    with pytest.raises(ConfigurationError, match=r"docs/coming-from-verl\.md"):
        load({section: {"some": {"thing": 1}}})


def test_every_yaml_block_of_the_page_has_known_keys() -> None:
    """M1."""
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL):
        assert set(yaml.safe_load(text)) <= {field.name for field in attrs.fields(RunConfig)}
