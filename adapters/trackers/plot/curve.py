"""The picture of a run, which carries its own points."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import attrs

_POINTS = "hexpo points"
"""Key of the picture's text that holds the points, so that a resumed run draws on."""

Point = tuple[int, float]


@attrs.frozen
class Curve:
    """Points of one line."""

    name: str
    points: tuple[Point, ...] = ()

    def with_point(self, step: int, value: float) -> Curve:
        """With a point more; one of the same step is replaced."""
        others = tuple(point for point in self.points if point[0] != step)
        return Curve(self.name, (*others, (step, value)))

    def up_to(self, step: int) -> Curve:
        """Without the points after `step`."""
        return Curve(self.name, tuple(point for point in self.points if point[0] <= step))


def _smooth(points: Sequence[Point], *, width: int = 5) -> list[Point]:
    """Mean of the last `width` values at each step."""
    means = []
    for end in range(1, len(points) + 1):
        window = [value for _, value in points[max(0, end - width) : end]]
        means.append((points[end - 1][0], sum(window) / len(window)))
    return means


def draw(path: Path, *, title: str, reward: Curve, heldout: Sequence[Curve]) -> None:
    """Write the picture whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel="step", ylabel="reward, accuracy")
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if reward.points:
        axes.plot(*zip(*reward.points, strict=True), color="C0", alpha=0.35, linewidth=1)
        smooth = _smooth(reward.points)
        axes.plot(*zip(*smooth, strict=True), color="C0", linewidth=2, label=reward.name)
    for place, curve in enumerate(heldout, start=1):
        style = {"color": f"C{place}", "marker": "o", "linewidth": 1.5}
        axes.plot(*zip(*curve.points, strict=True), label=curve.name, **style)  # type: ignore[arg-type]
    if reward.points or heldout:
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    figure.savefig(unfinished, format="png", metadata={_POINTS: _dump(reward, heldout)})
    os.replace(unfinished, path)


def _dump(reward: Curve, heldout: Sequence[Curve]) -> str:
    return json.dumps([attrs.asdict(curve) for curve in (reward, *heldout)])


def read(path: Path) -> list[Curve]:
    """The points that a picture carries, reward first; none if there is no such picture."""
    if not path.is_file():
        return []
    from PIL import Image

    with Image.open(path) as image:
        text = image.info.get(_POINTS, "[]")
    return [
        Curve(row["name"], tuple((step, value) for step, value in row["points"]))
        for row in json.loads(text)
    ]
