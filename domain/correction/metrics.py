"""How far training policy and sampler are apart: metrics of stored columns."""

from __future__ import annotations

from torch import Tensor

from hexpo.domain.checks import require_same_axes
from hexpo.domain.losses.ratio import bounded_exp
from hexpo.domain.metrics import Measure, largest, mean_of, smallest
from hexpo.domain.ragged import row_counts, row_means, row_sums


def off_policy(old_T: Tensor, behaviour_T: Tensor, owner_T: Tensor) -> dict[str, Measure]:
    """Perplexities and their gap, KL by k1 and k3, and chi-square; x = old - behaviour.

    kl = mean_T(-x), k3_kl = mean_T(exp(x) - 1 - x), both of KL(behaviour || old);
    chi2_token = mean_T(exp(x)^2) - 1, chi2_sequence = mean_S(exp(sum x)^2) - 1; a row's perplexity
    is exp of minus its mean log-prob, and perplexities are means over rows with a token.

    Args: (T,) trained tokens, log-probs in nats; `owner_T` int64, the place of each token's row.
    Returns: measures that may be merged over any parts of whole rows.
    Raises: WrongColumn: axes disagree.
    """
    require_same_axes(old=old_T, behaviour=behaviour_T, owner=owner_T)
    old_T, behaviour_T = old_T.detach().double(), behaviour_T.detach().double()
    rows = int(owner_T.max()) + 1 if owner_T.numel() else 0
    live_S = row_counts(owner_T, rows=rows) > 0
    x_T = old_T - behaviour_T
    ratio_T = bounded_exp(x_T)
    old_S = -row_means(old_T, owner_T, rows=rows)[live_S]
    behaviour_S = -row_means(behaviour_T, owner_T, rows=rows)[live_S]
    product_S = bounded_exp(row_sums(x_T, owner_T, rows=rows)[live_S])
    gap_S = old_S - behaviour_S
    measures = {
        "kl": _mean(-x_T),
        "k3_kl": _mean(ratio_T - 1 - x_T),
        "chi2_token": _mean(ratio_T.square() - 1),
        "chi2_sequence": _mean(product_S.square() - 1),
        "training_perplexity": _mean(old_S.exp()),
        "training_log_perplexity": _mean(old_S),
        "rollout_perplexity": _mean(behaviour_S.exp()),
        "rollout_log_perplexity": _mean(behaviour_S),
        "log_perplexity_gap": _mean(gap_S),
        "log_perplexity_gap_size": _mean(gap_S.abs()),
        "perplexity_ratio": _mean(gap_S.exp()),
    }
    if gap_S.numel():
        measures["log_perplexity_gap_largest"] = largest(float(gap_S.max()))
        measures["log_perplexity_gap_smallest"] = smallest(float(gap_S.min()))
    return measures


def _mean(values: Tensor) -> Measure:
    return mean_of(float(values.sum()), values.numel())
