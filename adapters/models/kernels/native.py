"""Compiles the C files beside it on first use and calls them on tensor pointers."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
GLUE = tuple(HERE / name for name in ("kernels.c", "attention.c", "decode.c", "layers.c"))
PRODUCTS = (HERE / "products.c",)
MEMORY = (HERE / "memory.c",)
HEADERS = (HERE / "storage.h",)
COMPILERS = ("cc", "gcc", "clang")
# Not -ffast-math: it would change the process's floating-point mode and hide NaN.
FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-freciprocal-math",
)
COMPILE_SECONDS = 120.0

# p: a tensor or None, i: int, f: float; the thread count comes first in every call.
SIGNATURES: Mapping[str, str] = {
    "rms_norm": "ppppiif",
    "rms_norm_backward": "ppppppii",
    "swiglu": "ppii",
    "swiglu_backward": "pppii",
    "rotate": "ppppfiii",
    "transpose": "ppii",
    "label_logprobs": "ppfpppii",
    "logits_gradient": "ppppppfii",
    "write_cache": "ppppppppppfiiii",
    "attend": "ppppppppppfpiiiif",
    "run_layers": "ppippppppppfiiiiiiiif",
    "sample": "ppppppii",
    "attention": "ppppiif",
    "attention_backward": "ppppppiiif",
}
PRODUCT_SIGNATURES: Mapping[str, str] = {
    "pack_panels": "ppiiiii",
    "multiply": "ppppiiiii",
    "add_product": "pppiiiii",
}
MEMORY_SIGNATURES: Mapping[str, str] = {
    "checksum": "pip",
    "checksums": "ppip",
    "copy_past_cache": "ppi",
}
_CTYPES: Mapping[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}


class Library:
    """Compiled functions: the glue of one storage type, head size and group size, or products."""

    def __init__(
        self,
        path: Path,
        signatures: Mapping[str, str] = SIGNATURES,
        *,
        head_dim: int = 0,
        group: int = 0,
    ) -> None:
        """Args: head_dim, group: what it was compiled for, where that matters."""
        self.head_dim, self.group = head_dim, group
        library = ctypes.CDLL(str(path))
        self._functions = {name: getattr(library, name) for name in signatures}
        for name, letters in signatures.items():
            self._functions[name].argtypes = [
                ctypes.c_int64,
                *(_CTYPES[letter] for letter in letters),
            ]
            self._functions[name].restype = None

    def address(self, name: str) -> int:
        """Where a function lies, for another one that calls it."""
        return ctypes.cast(self._functions[name], ctypes.c_void_p).value or 0

    def call(self, name: str, *arguments: Tensor | float | int | None) -> None:
        """Run a kernel on as many threads as torch uses. Tensors must be contiguous."""
        values = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        self._functions[name](torch.get_num_threads(), *values)


def load_library(
    *, bfloat16: bool, head_dim: int, group: int, folder: Path | None = None
) -> Library | None:
    """The compiled kernels, from the user's cache or the compiler.

    Args: folder: where compiled files are kept; by default the user's cache.
    Returns: None where there is no compiler, or it fails (logged).
    """
    options = (f"-DBF16={int(bfloat16)}", f"-DHEAD_DIM={head_dim}", f"-DGROUP={group}")

    def made(path: Path) -> Library:
        return Library(path, SIGNATURES, head_dim=head_dim, group=group)

    return _load(GLUE, options, folder, made)


def load_products(*, folder: Path | None = None) -> Library | None:
    """The compiled products, as `load_library`. The processor must have AVX-512 BF16."""
    return _load(PRODUCTS, (), folder, lambda path: Library(path, PRODUCT_SIGNATURES))


def load_memory(*, folder: Path | None = None) -> Library | None:
    """The compiled passes over memory, as `load_library`."""
    return _load(MEMORY, (), folder, lambda path: Library(path, MEMORY_SIGNATURES))


def _load(
    sources: Sequence[Path],
    defines: tuple[str, ...],
    folder: Path | None,
    made: Callable[[Path], Library],
) -> Library | None:
    """The library `made` of the compiled file, from a place that lets files be run."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    options = (*FLAGS, *defines)
    name = f"{sources[0].stem}-{_key(sources, compiler, options)}.so"
    for place in (folder or Path.home() / ".cache" / "hexpo" / "kernels", None):
        try:
            return made(_compiled(sources, compiler, options, place, name))
        except subprocess.SubprocessError as error:
            detail = getattr(error, "stderr", None) or b""
            logger.warning(
                "%s cannot compile %s, eager kernels are used: %s\n%s",
                compiler,
                sources[0].name,
                error,
                detail.decode(errors="replace"),
            )
            return None
        except OSError as error:
            logger.info("no compiled kernels in %s: %s", place or "a temporary folder", error)
    return None


def cpu_facts() -> str:
    """The processor's name and instruction sets, as far as the system tells."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        wanted = ("model name", "flags", "Features")
        lines = info.read_text().splitlines()
        cpu += "".join(sorted({line for line in lines if line.startswith(wanted)}))
    return cpu


def _key(sources: Sequence[Path], compiler: str, options: tuple[str, ...]) -> str:
    parts = (
        *(source.read_bytes() for source in (*sources, *HEADERS)),
        cpu_facts().encode(),
        compiler.encode(),
        *(o.encode() for o in options),
    )
    return hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()


def _compiled(
    sources: Sequence[Path],
    compiler: str,
    options: tuple[str, ...],
    folder: Path | None,
    name: str,
) -> Path:
    """The library's path; written whole or not at all, by whoever comes first."""
    folder = folder or Path(tempfile.mkdtemp(prefix="hexpo-kernels-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        descriptor, partial = tempfile.mkstemp(dir=folder, prefix=name)
        os.close(descriptor)
        try:
            command = [compiler, *options, *map(str, sources), "-o", partial, "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    return path
