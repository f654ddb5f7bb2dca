"""Processes and engines that all tests of this folder share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ranks.bench import (
    SETTINGS,
    VOCABULARY,
    Letters,
    Loop,
    Twins,
    twins_of,
    twins_with,
)
from tests.tiny import llama

from hexpo.adapters.cluster import local
from hexpo.adapters.training import fsdp
from hexpo.application.ports.cluster import Cluster


@pytest.fixture(scope="package")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    llama(vocab_size=VOCABULARY, tie_word_embeddings=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="package")
def cluster(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = local.Config(oversubscribe=True)
    cluster = local.build(config, folder=tmp_path_factory.mktemp("run"))
    yield cluster
    loop(cluster.close())


@pytest.fixture(scope="package")
def two(
    loop: Loop, cluster: Cluster, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twins]:
    folder = tmp_path_factory.mktemp("two")
    twins = twins_of(loop, cluster, model, folder, ranks=2, name="two")
    yield twins
    twins.close()


TEAMS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel": 2},
    "sequence": {"sequence_parallel": 2},
}


@pytest.fixture(scope="package")
def pair(loop: Loop) -> Iterator[Any]:
    """Two processes in which engines are made, one after the other: each start costs seconds."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
    try:
        engines: Any = importlib.import_module("training_engines")
    finally:
        sys.path.pop(0)
    pair = engines.Pair(loop)
    yield pair
    pair.close()


@pytest.fixture(scope="package", params=TEAMS)
def team(
    request: pytest.FixtureRequest,
    loop: Loop,
    pair: Any,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Twins]:
    more = TEAMS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    engine, store = pair.open(fsdp.Config(**{**SETTINGS, **more}), model, Letters())
    twins = twins_with(loop, engine, store, model, folder, **more)
    yield twins
    twins.close()


@pytest.fixture(autouse=True)
def _afresh(request: pytest.FixtureRequest) -> None:
    for name in {"two", "team"} & set(request.fixturenames):
        request.getfixturevalue(name).reset()
