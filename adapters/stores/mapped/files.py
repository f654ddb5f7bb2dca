"""Writing and opening the files. A column of no element has no file: none can be mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import MemoryMappedTensor, TensorDict
from torch import Tensor

from hexpo.domain.batch import SCHEMA, Batch, Schema, Sequences, Table
from hexpo.domain.errors import WrongBatch

_LISTING = "batch.json"


def write_mapped(batch: Batch, folder: Path) -> None:
    """Write a batch's columns, a file each, and last the listing that makes the folder complete.

    Raises: WrongBatch: the folder holds a batch already; files are written once.
    """
    if (folder / _LISTING).exists():
        raise WrongBatch(f"{folder} holds a batch already; give an empty or new folder")
    listing = {
        "sequences": _write(batch.sequences.columns, len(batch), folder / Table.SEQUENCES.value),
        "tokens": _write(batch.columns, int(batch.tokens.shape[0]), folder / Table.TOKENS.value),
    }
    unfinished = folder / f"{_LISTING}.part"
    unfinished.write_text(json.dumps(listing), encoding="utf-8")
    unfinished.replace(folder / _LISTING)


def open_mapped(folder: Path, *, schema: Schema = SCHEMA) -> Batch:
    """The batch in a folder, mapped and not read: what `write_mapped` wrote there.

    Raises: WrongBatch: no complete batch lies there, or one with undeclared columns.
    """
    if not (folder / _LISTING).is_file():
        raise WrongBatch(f"{folder} holds no complete batch: {_LISTING} is missing")
    listing = json.loads((folder / _LISTING).read_text(encoding="utf-8"))
    sequences = _open(listing["sequences"], folder / Table.SEQUENCES.value)
    return Batch(
        Sequences(sequences, schema), _open(listing["tokens"], folder / Table.TOKENS.value)
    )


def _write(columns: Mapping[str, Tensor], rows: int, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, column in columns.items():
        if column.numel():
            MemoryMappedTensor.from_tensor(
                column.detach(), filename=str(folder / name), existsok=True
            )
    described = {
        name: [str(column.dtype).removeprefix("torch."), list(column.shape)]
        for name, column in columns.items()
    }
    return {"rows": rows, "columns": described}


def _open(listing: Mapping[str, Any], folder: Path) -> TensorDict:
    columns = {}
    for name, (dtype_name, shape) in listing["columns"].items():
        dtype = getattr(torch, dtype_name)
        if 0 in shape:
            columns[name] = torch.zeros(shape, dtype=dtype)
        else:
            columns[name] = MemoryMappedTensor.from_filename(
                str(folder / name), dtype=dtype, shape=torch.Size(shape)
            )
    return TensorDict(columns, [listing["rows"]])
