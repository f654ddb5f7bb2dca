"""Four ranks in every mixture of teams train what one process trains.

The ranks are this file, run as `python test_teams.py PORT FOLDER`: all cases in one start.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.testing import assert_close

from hexpo.adapters.models.families import Packing
from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.lora import Lora
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.models.spec import DecoderSpec, spec_of
from hexpo.adapters.stores.memory import MemoryRowStore
from hexpo.adapters.training import fsdp
from hexpo.adapters.training.backend import Progress
from hexpo.adapters.training.fsdp import Config
from hexpo.adapters.training.fsdp.building import require_alone
from hexpo.adapters.training.fsdp.config import OF_SEVERAL_RANKS
from hexpo.adapters.training.fsdp.ranks import Model, open_rank
from hexpo.adapters.training.fsdp.spread import require_teams
from hexpo.adapters.training.host.order import shared
from hexpo.adapters.training.host.service import _Ranks
from hexpo.adapters.training.host.worker import Worker
from hexpo.adapters.training.wire import describe
from hexpo.domain.batch import Batch, Sequences
from hexpo.domain.errors import Unsupported
from hexpo.domain.losses.ppo import ppo
from hexpo.domain.losses.value import value
from hexpo.domain.objective import Loss, Objective, Proximal, Term

RANKS, STEPS, VOCABULARY, TEMPERATURE, SEED = 4, 2, 61, 0.8, 4
PPO = Objective(terms=(Term(name="ppo", loss=Loss(function=ppo)),), proximal=Proximal.STORED)
VALUE = Objective(terms=(Term(name="value", loss=Loss(function=value)),))


@attrs.frozen
class Case:
    """A model and how four ranks share it."""

    family: str
    options: dict[str, Any]

    @property
    def config(self) -> Config:
        """Of ranks; one process leaves the teams out."""
        return Config(learning_rate=0.5, epsilon=1.0, micro_tokens=24, **self.options)

    @property
    def objective(self) -> Objective:
        """What is learnt."""
        return VALUE if self.options.get("value_head") else PPO


BOTH = {"tensor_parallel": 2, "sequence_parallel": 2}
CASES = {
    "tensor": Case("llama", {"tensor_parallel": 2}),
    "sequence": Case("llama", {"sequence_parallel": 2}),
    "both, untied, norms of heads": Case("qwen3", BOTH),
    "four by weights, biases": Case("qwen2", {"tensor_parallel": 4}),
    "four by tokens, recomputing": Case(
        "qwen3", {"sequence_parallel": 4, "activation_checkpointing": True}
    ),
    "host memory, late sums": Case(
        "llama", {"tensor_parallel": 2, "cpu_offload": True, "reduce_late": True}
    ),
    "a critic of both": Case("llama", {**BOTH, "value_head": True}),
    "adapters by tokens": Case("llama", {"sequence_parallel": 2, "lora": Lora(rank=4)}),
}


def rows(seed: int) -> Batch:
    """Rows of ragged lengths, with what policy and value losses read."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([9, 6, 14, 5, 11, 8, 7])
    total = int(lengths.sum())
    owner = torch.repeat_interleave(lengths)
    position = torch.arange(total) - (lengths.cumsum(0) - lengths)[owner]
    action = position >= 2
    sequences = Sequences.of(
        {
            "id": 100 * seed + torch.arange(len(lengths)),
            "group": torch.arange(len(lengths)) // 2,
            "length": lengths,
            "prompt_length": torch.full_like(lengths, 2),
            "trained": lengths - 2,
            "advantage": torch.randn(len(lengths), generator=draw),
        }
    )
    tokens = torch.randint(3, VOCABULARY, (total,), generator=draw)
    tokens[position < 2] = (3 + sequences["group"])[owner[position < 2]]
    old = -4.1 + torch.randn(total, generator=draw) * 0.1
    columns = {
        "token": tokens,
        "position": position,
        "action": action,
        "trained": action,
        "behaviour": old,
        "old": old,
        "value": torch.rand(total, generator=draw),
        "return": torch.rand(total, generator=draw),
    }
    return Batch.of(sequences, columns)


class Letters:
    identity, vocabulary, stop_ids = "letters", VOCABULARY, (2,)

    def save(self, folder: Path) -> None:
        (folder / "letters").write_text("")


def write_models(folder: Path) -> None:
    """Four heads, so that four ranks may share them."""
    import transformers

    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, True),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, True),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, False),
    }
    for name, (config, kind, tied) in kinds.items():
        torch.manual_seed(0)
        more = {"head_dim": 8} if name == "qwen3" else {}
        model = kind(config(**shape, **more, tie_word_embeddings=tied))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # biases and norms that differ from head to head
                    parameter += torch.randn_like(parameter) * 0.1
        model.save_pretrained(folder / name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where four ranks saved each case, before and after training."""
    folder = tmp_path_factory.mktemp("teams")
    write_models(folder)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, __file__, str(port), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=115,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def one_process(case: Case, folder: Path, model: Path) -> fsdp.FsdpEngine:
    usual = {name: getattr(fsdp.Config(), name) for name in OF_SEVERAL_RANKS}
    alone = attrs.evolve(case.config, **usual, micro_tokens=1000)
    return fsdp.build(
        alone,
        policy=load_policy(str(model), precision=Precision.FP32),
        store=MemoryRowStore(),
        tokenizer=Letters(),  # type: ignore[arg-type]
        temperature=TEMPERATURE,
        total_steps=STEPS,
        seed=SEED,
    )


async def train(engine: fsdp.FsdpEngine, case: Case) -> None:
    for step in range(STEPS):
        batch = rows(1 + step)
        engine._store.put(batch)
        await engine.accumulate(case.objective.weigh(batch.sequences), case.objective)
        assert (await engine.step()).applied


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_four_ranks_in_teams_train_as_one_process(trained: Path, name: str) -> None:
    """A1, H8: two steps in four calls; what they saved reads in one process, and agrees to 1e-5."""
    case = CASES[name]

    async def compare() -> None:
        engine = one_process(case, trained / name, trained / case.family)
        await engine.load(trained / name / "start")
        before = {n: w.clone() for n, w in engine._rank.masters.weights().items()}
        await train(engine, case)
        ours = {n: w.clone() for n, w in engine._rank.masters.weights().items()}
        await engine.load(trained / name / "end")
        for weight, theirs in engine._rank.masters.weights().items():
            assert_close(theirs, ours[weight], rtol=0, atol=1e-5)
        moved = [float((before[n] - w).abs().max()) for n, w in ours.items()]
        assert min(moved) > 0, "every weight has learnt"
        assert max(moved) > 1e-3
        await engine.close()

    asyncio.run(compare())


def spec(**more: int) -> DecoderSpec:
    import transformers

    found = spec_of(transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2))
    assert found is not None
    return attrs.evolve(found, **more)


@pytest.mark.parametrize(
    ("options", "ranks", "shape", "named"),
    [
        ({"tensor_parallel": 3}, 4, {}, "multiple of 3 training ranks"),
        ({"tensor_parallel": 2, "sequence_parallel": 2}, 4, {}, "4 key and value heads.* has 2"),
        ({"sequence_parallel": 3}, 3, {}, "3 attention heads"),
        ({"tensor_parallel": 2}, 2, {"intermediate": 33}, "2 inner MLP units.* has 33"),
        ({"tensor_parallel": 2, "lora": fsdp.Lora(rank=4)}, 2, {}, "remove `lora`"),
    ],
)
def test_teams_that_do_not_fit_are_refused(
    options: dict[str, object], ranks: int, shape: dict[str, int], named: str
) -> None:
    """M4: before anything is loaded; the message says what would do."""
    with pytest.raises(Unsupported, match=named):
        require_teams(fsdp.Config(**options), ranks, spec(**shape), "llama")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "option", [{"tensor_parallel": 2}, {"save_aside": True}, {"cpu_offload": True}], ids=str
)
def test_settings_of_ranks_are_refused_in_one_process(option: dict[str, object]) -> None:
    """M2: nothing is accepted and then ignored."""
    (name,) = option
    with pytest.raises(Unsupported, match=f"{name}.*training.ranks"):
        require_alone(fsdp.Config(**option))  # type: ignore[arg-type]
    require_alone(fsdp.Config())


def test_other_families_and_padded_rows_are_refused_in_teams() -> None:
    """M4: only the fast forward is cut."""
    config = fsdp.Config(sequence_parallel=2)
    with pytest.raises(Unsupported, match="gpt_neox"):
        require_teams(config, 2, None, "gpt_neox")
    padded = attrs.evolve(config, packing=Packing.PADDED)
    with pytest.raises(Unsupported, match="packing = auto"):
        require_teams(padded, 2, spec(), "llama")
    require_teams(config, 2, spec(), "llama")
    require_teams(fsdp.Config(), 3, None, "gpt_neox")


def train_here(case: Case, model: Path, folder: Path, rank: int) -> None:
    """Two steps; saves before the first and after the last."""
    described = Model(
        config=case.config,
        path=str(model),
        precision=Precision.FP32,
        temperature=TEMPERATURE,
        total_steps=STEPS,
        seed=SEED,
    )
    backend, store = open_rank(described, rank=rank, ranks=RANKS), MemoryRowStore()
    worker = Worker(backend, _Ranks(rank), store)
    base = worker.base_digest()
    _save(worker, folder / "start", rank, base)
    for step in range(STEPS):
        batch = rows(1 + step)
        store.put(batch)
        weighed = case.objective.weigh(batch.sequences)
        shares = RANKS // backend.abilities.team
        columns = {"weights", "advantage"}
        for cut in (slice(0, 3), slice(3, 7)):
            packed = shared(weighed.select(cut), shares, columns, case.objective)
            worker.accumulate(packed, step, 8 * cut.start)
        worker.finish(step)
    _save(worker, folder / "end", rank, base)
    worker.close()


def _save(worker: Worker, folder: Path, rank: int, base: str) -> None:
    import torch.distributed as dist

    written: list[Any] = [None] * RANKS
    dist.all_gather_object(written, worker.save(str(folder)))
    if rank == 0:
        sizes = {file: size for part in written for file, size in part.items()}
        describe(folder, Progress(), base=base, sizes=sizes, ranks=RANKS)


def run_rank(rank: int, port: int, folder: Path) -> None:
    """All cases, one after the other."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0)
    bound = timedelta(seconds=60)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=RANKS, timeout=bound)
    for name, case in CASES.items():
        train_here(case, folder / case.family, folder / name, rank)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Fork the ranks, so that torch is imported once; gives how many failed."""
    import transformers  # noqa: F401  for all ranks

    forked = []
    for rank in range(RANKS):
        if child := os.fork():
            forked.append(child)
            continue
        status = 1
        try:
            run_rank(rank, int(sys.argv[1]), Path(sys.argv[2]))
            status = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            sys.stderr.flush()
            os._exit(status)
    return sum(os.waitpid(child, 0)[1] != 0 for child in forked)


if __name__ == "__main__":
    sys.exit(main())
