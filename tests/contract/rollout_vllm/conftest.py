"""One model and one engine for all tests of this folder: a start takes half a minute."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.contract.rollout_vllm.bench import SUITE, Model, OverThere, make_model

from hexpo.adapters.models.export import export_policy
from hexpo.adapters.models.loading import load_policy
from hexpo.adapters.models.policy import Precision
from hexpo.adapters.rollout.vllm import Config, build, environment


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """As transformers reads a folder that hexpo exported; the engine serves the same folder."""
    import transformers

    made = make_model(tmp_path_factory.mktemp("model"))
    exported = tmp_path_factory.mktemp("exported")
    export_policy(load_policy(str(made.folder), precision=Precision.FP32), exported)
    module = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, made.module.get_parameter(name))
    return Model(module.eval(), exported)


@pytest.fixture(scope="package")
def real(model: Model) -> Iterator[OverThere]:
    """The engine; the last file of the folder kills it."""
    arguments = {"max_num_batched_tokens": 256}  # one longest prompt, and no room beside it
    config = Config(slots=SUITE.SLOTS, top_k=SUITE.VOCABULARY, arguments=arguments)
    os.environ.update(environment(config))  # its processes inherit them
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = asyncio.run_coroutine_threadsafe(
        build(
            config,
            model=str(model.folder),
            precision=Precision.FP32,
            tokenizer=SUITE.Letters(),
            receiver="hexpo.adapters.transfer.disk",
            reader="replica",
        ),
        loop,
    ).result()
    yield OverThere(engine, loop, model)
    asyncio.run_coroutine_threadsafe(engine.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
