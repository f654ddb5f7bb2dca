"""Several teachers as one scorer: each row goes to its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from hexpo.application.ports.scorer import Scorer
from hexpo.application.ports.store import RowStore
from hexpo.domain.batch import Sequences
from hexpo.domain.distillation.teachers import NOBODY
from hexpo.domain.errors import ConfigurationError
from hexpo.domain.metrics import Metrics, merge, total


class Teacher(Scorer, Protocol):
    """A scorer that keeps some ids of each distribution."""

    @property
    def width(self) -> int:
        """How many: K of `teacher_topk`."""
        ...


class Teachers:
    """Implements the Scorer port: rows keep their order, and each is scored once, by the teacher
    that the column `taught_by` names (S4).

    A row without a teacher gets NaN, which no term trains on; it is counted, as is what a teacher
    said that is no log-prob (`teacher/NAME/unusable`, tokens).
    """

    def __init__(self, teachers: Mapping[str, Teacher], *, store: RowStore) -> None:
        """Args: teachers: by name, in the order of their places; all of one width, at least one.

        Raises: ConfigurationError: they keep different numbers of ids.
        """
        widths = {name: teacher.width for name, teacher in teachers.items()}
        if len(set(widths.values())) != 1:
            raise ConfigurationError(f"teachers must keep equally many ids, not {widths}")
        self._teachers, self._store = dict(teachers), store
        self._width = next(iter(widths.values()))

    async def score(self, rows: Sequences, columns: Collection[str]) -> Metrics:
        """Write `teacher`, `teacher_topk` and `teacher_ids`, as asked."""
        found: list[Metrics] = []
        for place, (name, teacher) in enumerate(self._teachers.items()):
            mine = rows.select(rows["taught_by"] == place)
            told = dict(await teacher.score(mine, columns)) if len(mine) else {}
            if (unusable := told.pop("score/unusable", None)) is not None:
                told[f"teacher/{name}/unusable"] = unusable
            found.append({**told, f"teacher/{name}/samples": total(float(len(mine)))})
        alone = rows.select(rows["taught_by"] == NOBODY)
        if len(alone):
            self._store.extend(alone.ids, self._nothing(int(alone.lengths.sum()), columns))
        found.append({"teacher/none/samples": total(float(len(alone)))})
        return merge(found)

    def _nothing(self, tokens: int, columns: Collection[str]) -> dict[str, Tensor]:
        made = {
            "teacher": torch.full((tokens,), torch.nan),
            "teacher_topk": torch.full((tokens, self._width), torch.nan),
            "teacher_ids": torch.zeros(tokens, self._width, dtype=torch.int64),
        }
        return {name: made[name] for name in columns}
