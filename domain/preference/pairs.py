"""A pair is the two rows of one group, of which one is chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from hexpo.domain.aggregate import require_pairs
from hexpo.domain.errors import WrongColumn


def split_pairs(values_S: Tensor, group_S: Tensor, chosen_S: Tensor) -> tuple[Tensor, Tensor]:
    """(P,) each: the values of the chosen and of the rejected rows, by ascending group.

    Args: (S,) each; group_S: int64, what the two rows of a pair share. chosen_S: bool.
    Raises: WrongColumn: a group without two rows, or without exactly one chosen row.
    """
    require_pairs(group_S)
    by_rank = torch.argsort(chosen_S.long(), descending=True, stable=True)
    places = by_rank[torch.argsort(group_S[by_rank], stable=True)].reshape(-1, 2)
    better, worse = chosen_S[places].unbind(1)
    if bool((wrong := ~(better & ~worse)).any()):
        group = int(group_S[places[wrong][0, 0]])
        raise WrongColumn(f"group {group} must have one chosen and one rejected row")
    chosen_P, rejected_P = values_S[places].unbind(1)
    return chosen_P, rejected_P
