"""Advantage estimators as values: a function, its options, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch import Tensor

from hexpo.domain.batch import Sequences
from hexpo.domain.errors import WrongBatch
from hexpo.domain.signature import Needs, needs_of


@attrs.frozen(kw_only=True)
class Estimator:
    """An advantage estimator and its options.

    An outcome estimator takes `_S` columns only and returns (S,): one advantage a row, 0 where
    the row is not scored; it runs on the driver. A token estimator takes `_T` columns too and
    returns a mapping of (T,) columns (`advantage`, and `return` for a critic); it runs where the
    rows lie, and gets `owner_T`, the place of each token's row.
    """

    function: Callable[..., Tensor | Mapping[str, Tensor]]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    min_samples: int = 1
    """Samples per prompt below which the estimator means nothing; checked at configuration."""

    @property
    def needs(self) -> Needs:
        """Columns of the function."""
        return needs_of(self.function)

    @property
    def per_token(self) -> bool:
        """Whether it reads tokens, so that it must run where the rows lie."""
        return bool(self.needs.tokens)

    def of_rows(self, rows: Sequences) -> Tensor:
        """(S,) float32 advantages of an outcome estimator.

        Raises: WrongBatch: the function gave another shape; names it.
        """
        arguments = {f"{name}_S": rows[name] for name in self.needs.sequences}
        made = self.function(**arguments, **self.options)
        advantages = made if isinstance(made, Tensor) else made["advantage"]
        if advantages.shape != (len(rows),):
            name = getattr(self.function, "__qualname__", None) or repr(self.function)
            raise WrongBatch(
                f"advantage estimator {name} returned {tuple(advantages.shape)} for {len(rows)}"
                " rows: return one number a row, (S,); one a token needs a _T parameter"
            )
        return advantages.float()
