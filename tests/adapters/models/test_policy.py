"""Weights by name, merged adapters, digests, exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from hexpo.adapters.models.export import export_adapter, export_policy
from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.lora import Lora, attach, without_adapters
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.domain.errors import ModelError

Tiny = Callable[..., Policy]
_IDS = torch.tensor([[5, 9, 3, 60, 7, 7]])


def _logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.module(_IDS).logits.float()


def _adapted(tiny: Tiny, family: str = "llama") -> tuple[Policy, Lora]:
    policy, lora = tiny(family), Lora(rank=4, alpha=8.0, targets=("q_proj", "down_proj"))
    attach(policy, lora)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.module.named_parameters():
            if ".lora_B." in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return policy, lora


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_an_exported_folder_gives_the_same_logits(family: str, tiny: Tiny, tmp_path: Path) -> None:
    """H7: loaded by transformers alone, within 1e-4 in fp32."""
    from transformers import AutoModelForCausalLM

    policy = tiny(family)
    export_policy(policy, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert_close(loaded(_IDS).logits, _logits(policy), rtol=0, atol=1e-4)


def test_an_exported_folder_is_loaded_as_the_same_policy(tiny: Tiny, tmp_path: Path) -> None:
    """H7: same names, same bits; in fewer bits only if asked."""
    policy = tiny("qwen2")
    export_policy(policy, tmp_path / "whole")
    assert (
        load_policy(str(tmp_path / "whole"), precision=Precision.FP32).digest() == policy.digest()
    )
    export_policy(policy, tmp_path / "half", dtype=torch.bfloat16)
    half = load_policy(str(tmp_path / "half"), precision=Precision.BF16)
    assert half.digest() != policy.digest()
    assert half.config.dtype is torch.bfloat16


def test_merged_adapters_are_exported_as_plain_weights(tiny: Tiny, tmp_path: Path) -> None:
    """H7: the folder knows nothing of adapters and gives the adapted logits."""
    from transformers import AutoModelForCausalLM

    policy, _ = _adapted(tiny)
    export_policy(policy, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert_close(loaded(_IDS).logits, _logits(policy), rtol=0, atol=1e-4)


def test_an_exported_adapter_is_loaded_by_peft(tiny: Tiny, tmp_path: Path) -> None:
    """H7: base folder and adapter folder together give the adapted logits."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    export_policy(tiny("llama"), tmp_path / "base")
    policy, lora = _adapted(tiny)
    export_adapter(policy, tmp_path / "adapter", lora=lora, base=str(tmp_path / "base"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        assert_close(loaded(_IDS).logits, _logits(policy), rtol=0, atol=1e-4)


def test_a_weight_by_name_is_the_live_tensor(tiny: Tiny) -> None:
    """A rollout that reads it sees each update without a copy."""
    policy = tiny("llama")
    weight = policy.weight("model.layers.1.mlp.up_proj.weight")
    with torch.no_grad():
        policy.module.get_parameter("model.layers.1.mlp.up_proj.weight").zero_()
    assert not weight.any()


def test_a_weight_under_an_adapter_is_merged_and_its_base_untouched(tiny: Tiny) -> None:
    """The effective weight is base + alpha / rank * B A, also while a reference is read."""
    policy, _ = _adapted(tiny)
    name = "model.layers.0.self_attn.q_proj"
    base = tiny("llama").weight(f"{name}.weight")
    down = policy.module.get_parameter(f"{name}.lora_A.default.weight")
    up = policy.module.get_parameter(f"{name}.lora_B.default.weight")
    assert_close(policy.weight(f"{name}.weight"), base + 2.0 * (up @ down).detach())
    with without_adapters(policy):
        assert_close(policy.weight(f"{name}.weight"), base + 2.0 * (up @ down).detach())
        assert_close(_logits(policy), _logits(tiny("llama")))
    assert (_logits(policy) - _logits(tiny("llama"))).abs().max() > 1e-3


def test_a_tied_head_is_the_embedding_and_named_once(tiny: Tiny) -> None:
    """Weight streams must not carry two copies that can come to differ."""
    policy = tiny("qwen2")
    head, embedding = policy.weight("lm_head.weight"), policy.weight("model.embed_tokens.weight")
    assert head.data_ptr() == embedding.data_ptr()
    names = [name for name, _ in policy.named_weights()]
    assert "lm_head.weight" not in names
    assert len(names) == len(set(names))


def test_fused_experts_come_apart_in_the_stream(tiny: Tiny) -> None:
    """Engines read the published names: one tensor for each expert."""
    names = dict(tiny("qwen3_moe").named_weights())
    assert names["model.layers.0.mlp.experts.3.down_proj.weight"].shape == (32, 24)


def test_an_unknown_weight_is_an_error_by_name(tiny: Tiny) -> None:
    """The message names the weight."""
    with pytest.raises(ModelError, match=r"q_proj\.scale"):
        tiny("llama").weight("model.layers.0.self_attn.q_proj.scale")


def test_the_digest_sees_one_changed_bit(tiny: Tiny) -> None:
    """Equal for equal bits only."""
    policy = tiny("llama")
    before = policy.digest()
    assert tiny("llama").digest() == before
    with torch.no_grad():
        policy.module.get_parameter("model.norm.weight")[0] *= 1 + 1e-6
    assert policy.digest() != before


def test_a_missing_adapter_target_is_refused(tiny: Tiny) -> None:
    """peft would skip fused experts in silence."""
    with pytest.raises(ModelError, match="c_attn"):
        attach(tiny("llama"), Lora(targets=("c_attn",)))


def test_an_export_over_an_older_one_leaves_no_weight_of_that(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H7: readers take `model.safetensors` before an index, whoever wrote it."""
    older, newer = tiny("llama"), tiny("llama")
    with torch.no_grad():
        for parameter in older.module.parameters():
            parameter += 1.0
    for shard, policy in (("5GB", older), ("40KB", newer), ("5GB", older), ("40KB", newer)):
        monkeypatch.setattr("hexpo.adapters.models.export._SHARD", shard)
        export_policy(policy, tmp_path)
        found = load_policy(str(tmp_path), precision=Precision.FP32)
        assert_close(_logits(found), _logits(policy))
        assert (tmp_path / "model.safetensors").exists() == (shard == "5GB")
        assert (tmp_path / "model.safetensors.index.json").exists() == (shard != "5GB")
