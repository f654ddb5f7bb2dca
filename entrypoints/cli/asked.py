"""What `hexpo simulate` may be asked for. Read at each start, so it imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter


def _help(text: str) -> Parameter:
    return Parameter(help=text)


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Asked:
    """Devices, answers and speeds, beside the configuration."""

    gpus: Annotated[int, _help("Devices that there are.")]
    gpus_per_replica: Annotated[int, _help("Devices of one rollout engine.")] = 1
    lengths: Annotated[
        Path | None, _help("Lengths of answers: a number a line, or a run's samples.jsonl.")
    ] = None
    from_run: Annotated[
        Path | None, _help("A run's folder: its speeds, and its lengths unless others are given.")
    ] = None
    split: Annotated[
        str | None, _help("`G:T` devices that generate and that train, or `colocated`.")
    ] = None
    staleness: Annotated[float | None, _help("Instead of asynchrony.max_staleness.")] = None
    parts: Annotated[
        int | None,
        _help(
            "Parts of a batch that are trained as they come, on separate devices; by default as the"
            " configuration would: its optimizer steps, or 1."
        ),
    ] = None
    sweep: Annotated[bool, Parameter(negative="", help="Look for the best split and schedule.")] = (
        False
    )
    steps: Annotated[int, _help("Steps that are measured, for each way.")] = 8
    token_seconds: Annotated[
        float | None, _help("Of a decoding pass; by default 0.005, or measured.")
    ] = None
    request_seconds: Annotated[
        float | None, _help("What a request adds to a pass; by default 0.0002, or measured.")
    ] = None
    slots: Annotated[int, _help("Requests that run together on a replica.")] = 256
    prefill_seconds: Annotated[float, _help("Of a token that is read, not sampled.")] = 0.0
    train_token_seconds: Annotated[
        float | None, _help("Of a trained token on one device; by default 0.0005, or measured.")
    ] = None
    load_seconds: Annotated[
        float | None, _help("Of a weight update; by default 1, or measured.")
    ] = None
    switch_seconds: Annotated[
        float | None, _help("Between generating and training on the same devices; default 5.")
    ] = None
    picture: Annotated[Path, _help("Where the picture is written.")] = Path("simulate.png")
