"""How often each row of an optimizer step counts, where rows are drawn again by their scores."""

from __future__ import annotations

import inspect

import attrs
import torch
from torch import Tensor

from hexpo.domain.checks import require_at_least
from hexpo.domain.seeds import seed_for
from hexpo.domain.shaping.resampling import Preference, resample

REPEATS = "repeats"
"""The column of such counts."""


@attrs.frozen(kw_only=True)
class Resampling:
    """Counts of rows that are drawn by score, with replacement.

    Called with the columns of a whole optimizer step; gives `repeats`, the same at each token of a
    row. A draw depends on the run's seed and on the rows alone.
    """

    preference: Preference = Preference.POWER
    power: float = 2.0
    seed: int = 0

    @property
    def __signature__(self) -> inspect.Signature:
        keyword = inspect.Parameter.KEYWORD_ONLY
        names = ("owner_T", "id_S", "score_S", "scored_S")
        return inspect.Signature([inspect.Parameter(name, keyword) for name in names])

    def __call__(self, **arguments: Tensor) -> dict[str, Tensor]:
        id_S, scored_S = arguments["id_S"], arguments["scored_S"]
        first = int(id_S.min()) if id_S.numel() else 0
        drawn = resample(
            score_S=arguments["score_S"],
            scored_S=scored_S,
            generator=torch.Generator().manual_seed(seed_for(self.seed, "resampling", first)),
            preference=self.preference,
            power=self.power,
        )
        repeats_S = torch.bincount(drawn, minlength=scored_S.shape[0]).float()
        return {REPEATS: repeats_S[arguments["owner_T"]]}


def resampled(
    *, repeats_T: Tensor, preference: Preference | str = Preference.POWER, power: float = 2.0
) -> Tensor:
    """PF-PPO: rows count as often as they are drawn by their scores, in place of once.

    n, how often the row is drawn: N draws with replacement, N the scored rows of the optimizer
    step, by |R|^power (`power`), the best and the worst alike (`max_min`), or the best with 0.4 and
    others with 0.1 (`max_random`)

    The mean of n over scored rows is 1, so that means over rows are those of the drawn rows.

    Args: repeats_T: (T,) counts, made before the step of `preference` and `power`.
    Returns: (T,) without gradient.
    Raises: WrongValue: an unknown preference, or power is below 0.
    Source: PF-PPO, Shen et al. 2024 (2409.06957).
    """
    require_at_least(0.0, power=power)
    Preference(preference)
    return repeats_T.detach()
