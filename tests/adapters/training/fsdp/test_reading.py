"""Weights that each rank reads for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from hexpo.adapters.models.policy import Precision
from hexpo.adapters.training.fsdp.places import Piece, cut, extent, meeting, whole, within
from hexpo.adapters.training.fsdp.reading import Source, empty_policy
from hexpo.adapters.training.fsdp.spread import axis_of


def write(folder: Path, *, kind: str = "Llama", tied: bool = False) -> None:
    import transformers

    torch.manual_seed(0)
    config: Any = getattr(transformers, f"{kind}Config")(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=[2, 7],
        tie_word_embeddings=tied,
    )
    model: Any = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.generation_config.eos_token_id = [2, 7]
    model.save_pretrained(folder)


def test_a_module_without_memory_knows_where_its_weights_are(tmp_path: Path) -> None:
    """I1: nothing is read yet; what the model's files say of stop ids stays."""
    write(tmp_path)
    found = empty_policy(str(tmp_path), precision=Precision.FP32, device="cpu")
    assert found is not None
    policy, source = found
    assert policy.device.type == "meta"
    assert policy.stop_ids == (2, 7)
    names = {name for name, _ in policy.module.named_parameters()}
    assert names == source.files.keys()


def test_a_part_is_that_part_of_the_file_rounded_as_when_loaded_whole(tmp_path: Path) -> None:
    """H7: and a weight that no file has is a new head, which begins at 0."""
    write(tmp_path)
    name = "model.layers.0.mlp.gate_proj.weight"
    stored = load_file(tmp_path / "model.safetensors")[name]
    source = Source(tmp_path, {name: "model.safetensors"}, Precision.BF16, "cpu")
    part = torch.full((5, 7), float("nan"))
    source.read(name, (slice(3, 8), slice(11, 18)), part)
    assert torch.equal(part, stored[3:8, 11:18].bfloat16().float())
    assert not torch.equal(part, stored[3:8, 11:18])
    source.read("value_head.weight", (slice(0, 5), slice(0, 7)), part)
    assert torch.equal(part, torch.zeros(5, 7))


@pytest.mark.parametrize("broken", ["another family", "other names", "no file"])
def test_what_cannot_be_read_in_parts_is_loaded_whole(tmp_path: Path, broken: str) -> None:
    """H7: never a weight that nobody read."""
    write(tmp_path, kind="Olmo" if broken == "another family" else "Llama")
    file = tmp_path / "model.safetensors"
    if broken == "other names":
        from safetensors.torch import save_file

        stored = load_file(file)
        save_file({f"old.{name}": tensor for name, tensor in stored.items()}, file)
    if broken == "no file":
        file.unlink()
    assert empty_policy(str(tmp_path), precision=Precision.FP32, device="cpu") is None


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    teams=st.integers(1, 4),
    shards=st.integers(1, 4),
    axis=st.integers(0, 1),
)
def test_parts_of_teams_and_shards_make_up_the_weight_once(
    shape: tuple[int, int], teams: int, shards: int, axis: int
) -> None:
    """H8: for every shape, uneven ones and empty parts included; and as torch cuts them."""
    covered = torch.zeros(shape, dtype=torch.int64)
    stored = torch.arange(covered.numel()).view(shape)
    places = []
    for team in range(teams):
        whole_place = whole(shape).place
        of_team = cut(whole_place, axis, team, teams)
        chunks = stored.chunk(teams, axis)
        expected = chunks[team] if team < len(chunks) else stored.narrow(axis, 0, 0)
        assert torch.equal(stored[of_team], expected)
        for shard in range(shards):
            place = cut(of_team, 0, shard, shards)
            covered[place] += 1
            places.append(place)
    assert bool((covered == 1).all())
    assert extent(places) == shape
    wanted = cut(cut(whole(shape).place, 1 - axis, 0, 2), 0, 1, 3)
    found = torch.full([max(0, along.stop - along.start) for along in wanted], -1)
    for place in places:
        both = meeting(place, wanted)
        if both is not None:
            found[within(both, wanted)] = stored[place][within(both, place)]
    assert torch.equal(found, stored[wanted])
    assert whole(shape) == Piece(whole(shape).place, shape)


def test_weights_are_cut_by_their_names() -> None:
    """Norms and biases of what is summed stay whole."""
    layer = "model.layers.3."
    assert axis_of(f"{layer}self_attn.q_proj.bias") == 0
    assert axis_of(f"{layer}self_attn.o_proj.weight") == 1
    assert axis_of(f"{layer}self_attn.o_proj.bias") is None
    assert axis_of(f"{layer}mlp.down_proj.weight") == 1
    assert axis_of("model.embed_tokens.weight") == 0
    assert axis_of("lm_head.weight") == 0
    for kept in ("model.norm.weight", f"{layer}self_attn.q_norm.weight", "value_head.weight"):
        assert axis_of(kept) is None


def test_a_rank_reads_every_weight_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: every weight is read once, a tied one, too; a new head begins at 0."""
    from hexpo.adapters.training.fsdp.config import Config
    from hexpo.adapters.training.fsdp.ranks import Model, open_rank

    write(tmp_path, tied=True)
    asked: list[tuple[str, Any]] = []
    plain = Source.read
    monkeypatch.setattr(
        Source,
        "read",
        lambda self, name, place, to: (asked.append((name, place)), plain(self, name, place, to)),
    )
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Model(
            config=Config(value_head=True),
            path=str(tmp_path),
            precision=Precision.FP32,
            temperature=1.0,
            total_steps=1,
            seed=0,
        )
        backend = open_rank(model, rank=0, ranks=1)
        stored = load_file(tmp_path / "model.safetensors")
        got = {weight.name: weight.tensor.clone() for weight in backend.weights()}
        backend.close()
    finally:
        dist.destroy_process_group()
    names = [name for name, _ in asked]
    assert len(names) == len(set(names))
    assert set(names) == stored.keys() | {"value_head.weight"}
    for name, tensor in stored.items():
        assert torch.equal(got[name], tensor), name
