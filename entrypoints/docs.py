"""Writes the generated pages of the documentation.

python -m hexpo.entrypoints.docs
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import attrs

from hexpo.domain.algorithms import ELSEWHERE, KINDS, Line, lines
from hexpo.domain.sampling import Sampling
from hexpo.infrastructure import find
from hexpo.infrastructure.config.documentation import Field, fields_of, lines_under
from hexpo.infrastructure.config.schema import FurtherModel, RunConfig, TermSection
from hexpo.infrastructure.config.structure import is_section, members

PORTS = (
    "prompts",
    "rewards",
    "rollout",
    "agents",
    "training",
    "checkpoints",
    "trackers",
    "platform",
    "cluster",
    "transfer",
)
"""Ports whose adapters have settings, in the order of the page."""

BAR = "&#124;"
"""A bar inside a table's cell."""

HEAD = """# Configuration

A run is made from one YAML file and `section.key=value` overrides. A key has one default; what is
given wins over what the model's folder says, and that over the default. Unknown keys, wrong types
and values out of range are refused before anything is loaded, all of them at once, with the
nearest valid name. `hexpo plan FILE` shows each value and where it came from.

The page is generated from the schema: `python -m hexpo.entrypoints.docs`.
"""


def configuration() -> str:
    """The page of all keys: the schema's sections, then each adapter's own options."""
    return "\n".join([HEAD, *_schema(), *_adapters()]) + "\n"


ALGORITHMS = """# Algorithms

Every named algorithm: what it computes, from which columns, with which options, and who proposed
it. Each is one function of `hexpo.domain` that can be imported alone. The page is generated from
their docstrings: `python -m hexpo.entrypoints.docs`; `hexpo algorithms` prints the same.
"""


WHERE: Mapping[str, str] = MappingProxyType(
    {
        "advantage": "Chosen by `algorithm.advantage`. A critic or a teacher is a line of `models`:"
        " `{role: critic}`, `{role: teacher, path: FOLDER}`.",
        "policy loss": "Chosen by `algorithm.loss`. Rows with an advantage of 0 are not run where"
        " no term has a gradient there; denominators count them all the same, and"
        " `samples/left_out` says how many.",
        "term": "Chosen by `algorithm.terms`, as any policy loss or KL estimator may be.",
        "KL estimator": "Chosen by `algorithm.kl`. `algorithm.controllers` may move its coefficient"
        " (`adaptive_kl`: `target`, `horizon`) and that of the entropy bonus (`adaptive_entropy`:"
        " `target`, `step`, `lowest`, `highest`).",
        "distillation": "Terms that draw to a teacher, chosen by `algorithm.terms`; see"
        " [Distillation](distillation.md).",
        "fit": "What `algorithm.loss` names in `hexpo fit`, which learns from given answers.",
        "shaping": "Chosen by `algorithm.shaping`: added to the score that estimators see, beside"
        " what was graded.",
        "weight": "Chosen by `algorithm.correction`: they multiply the policy's loss, and no"
        " denominator.",
        "mask": "Chosen by `algorithm.correction`: made of stored columns before an optimizer step,"
        " so that what they drop is in no denominator.",
        "choice": "Made for the losses that read `covariant`.",
        "gate": "Chosen by `algorithm.correction`: they read the present policy, so they zero"
        " numerators only.",
        "controller": "Chosen by `algorithm.controllers`: they move a coefficient from step to"
        " step, which starts as it is configured. Without one it stays.",
        "aggregation": "Chosen by `algorithm.aggregation` and by each term: what its numbers x, one"
        " a trained token or one a row, become together.",
    }
)
"""How a kind of algorithm is chosen."""


def algorithms() -> str:
    """The page of all algorithms, a section a kind, from the catalogues."""
    parts = [ALGORITHMS]
    for kind in KINDS:
        parts.append(f"## {kind}\n\n{WHERE[kind]}\n")
        for line in lines(kind):
            texts = (f"### `{line.name}`", line.summary, f"    {line.formula}", _facts(line))
            parts += [f"{text}\n" for text in texts if text]
        if kind in ELSEWHERE:
            parts.append(f"Names of other libraries:\n\n{_foreign(kind)}\n")
    return "\n".join(parts)


def _foreign(kind: str) -> str:
    return "\n".join(
        f"- `{name}`{'' if one.means else ' is refused'}: {one.hint}"
        for name, one in ELSEWHERE[kind].items()
    )


def _facts(line: Line) -> str:
    options = ", ".join(f"`{name} = {value}`" for name, value in line.options.items())
    aggregated = f", aggregated by `{line.mode}`" if line.mode else ""
    facts = (
        ("one number a ", f"{line.unit}{aggregated}" if line.unit else ""),
        ("options: ", options),
        ("reads: ", ", ".join(line.needs)),
        ("needs: ", ", ".join(line.asks)),
        ("source: ", line.source),
    )
    return "\n".join(f"- {label}{text}" for label, text in facts if text)


def main(folder: Path) -> None:
    """Write the generated pages into `folder`."""
    (folder / "configuration.md").write_text(configuration(), encoding="utf-8")
    (folder / "algorithms.md").write_text(algorithms(), encoding="utf-8")


def _schema() -> Iterator[str]:
    texts = lines_under(RunConfig)
    for field in attrs.fields(attrs.resolve_types(RunConfig)):
        yield f"## {field.name}\n"
        yield f"{texts[field.name]}\n"
        sections = [option for option in members(field.type) if is_section(option)]
        if sections:
            yield from _table(fields_of(sections[0], prefix=f"{field.name}."))
        else:
            by = "role" if field.name == "models" else "kind"
            yield f"A list of sections with `{by}` and `options`.\n"
        if field.name == "algorithm":
            yield "Each of `algorithm.terms`:\n"
            yield from _table(fields_of(TermSection))
        if field.name == "rollout":
            yield "Of `rollout.sampling`, and of `evaluation.sampling` for what differs there:\n"
            yield from _table(fields_of(Sampling))
        if field.name == "models":
            yield "Each of `models`:\n"
            yield from _table(fields_of(FurtherModel))


def _adapters() -> Iterator[str]:
    yield "# Options of adapters\n"
    yield "What stands under `options` beside the name of an adapter.\n"
    for port in PORTS:
        for kind in find.names(port):
            module = find.adapter(port, kind)
            if not module.__name__.startswith("hexpo."):
                continue
            yield f"## {port}/{kind}\n"
            yield f"{(module.__doc__ or '').strip().splitlines()[0]}\n"
            of = getattr(module, "Config", None)
            yield from _table(fields_of(of)) if of is not None else ["It has no setting.\n"]


def _table(fields: Iterable[Field]) -> Iterator[str]:
    yield "| Key | Type | Default | What it is |\n|---|---|---|---|"
    for field in fields:
        default = f"`{field.default}`" if field.default else "must be given"
        cells = (f"`{field.key}`", field.kind, default, field.text)
        yield f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"
    yield ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
