"""Dependence of the choice of heads on the two settings of RA-I: k, the window, and alpha, the threshold."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import Unit, ra_i_scores, replaced_count, replacement_order, unit_scores

COLUMNS = ["model", "window", "threshold", "beta", "unit", "selected", "shared", "rank_correlation", "default"]


def replacement_ranks(scores: Tensor, kv_heads: int, unit: Unit) -> np.ndarray:
    """Rank of every unit over all layers, 0 for the one replaced first; ties are broken as the selection does."""
    order = replacement_order(unit_scores(scores, kv_heads, unit).reshape(1, -1))
    return order.argsort(dim=1)[0].numpy()


def rank_correlation(ranks: np.ndarray, other: np.ndarray) -> float:
    """Spearman's correlation of two rankings without ties; NaN for fewer than two units."""
    return float(np.corrcoef(ranks, other)[0, 1]) if len(ranks) > 1 else float("nan")


def compare_settings(
    profiles: Sequence[HeadProfile],
    default: HeadProfile,
    thresholds: Sequence[float],
    betas: Sequence[float],
    units: Sequence[Unit] = ("kv_group", "head"),
) -> pd.DataFrame:
    """Compare the heads that RA-I chooses with those that it chooses with its default settings.

    Args:
        profiles: of the same model on the same samples, one for each k.
        default: likewise, with the default k and alpha.
        thresholds: values of alpha.
        betas: shares of units chosen, over all layers.
        units: see `rank_heads`.

    Returns:
        model, window, threshold, beta, unit, selected (units chosen), shared (of them chosen by the default too),
        rank_correlation (Spearman's, of all units, with the default's ranking), default (whether it is that setting).
    """

    def rows() -> Iterator[tuple[str, int, float, float, str, int, int, float, bool]]:
        for unit in units:
            usual = replacement_ranks(ra_i_scores(default)[default.candidates], default.kv_heads, unit)
            for profile in profiles:
                for threshold in thresholds:
                    is_default = (profile.window, threshold) == (default.window, default.threshold)
                    scores = ra_i_scores(profile.with_threshold(threshold))[profile.candidates]
                    ranks = replacement_ranks(scores, profile.kv_heads, unit)
                    correlation = rank_correlation(ranks, usual)
                    for beta in betas:
                        count = replaced_count(len(ranks), beta)
                        shared = int(((ranks < count) & (usual < count)).sum())
                        setting = (default.model, profile.window, threshold, beta, unit)
                        yield *setting, count, shared, correlation, is_default

    return pd.DataFrame(rows(), columns=COLUMNS)
