"""The choice of heads: how far other selectors agree with RA-I, and how much RA-I's hangs on its settings."""

import numpy as np
import pandas as pd

from recurformer.render.ablations import PAPERS_SELECTOR
from recurformer.render.measurements import groups, require_values

SHARE = 0.5
"""The share of heads whose overlap is shown."""
UNITS = ("kv_group", "head")
"""The unit of selection that is looked at: the first that a model was measured with."""


def agreement(head_scores: pd.DataFrame) -> pd.DataFrame:
    """How far each selector agrees with RA-I: model, by, seed, rank_correlation (Spearman), overlap, heads.

    Overlap is the share of the `SHARE` of heads that a selector puts first which RA-I puts first too.

    Raises:
        ValueError: a model has no RA-I.
    """
    rows = []
    for model, of_model in groups(head_scores, "model"):
        require_values(of_model, f"head_scores ({model})", "by", [PAPERS_SELECTOR])
        keyed = of_model.set_index(["by", "seed", "layer", "head"])["score"]
        tables = keyed.unstack(["layer", "head"])
        first = round(SHARE * tables.shape[1])
        ranks = tables.rank(axis=1)
        chosen = {key: set(np.argsort(-row.to_numpy(), kind="stable")[:first]) for key, row in tables.iterrows()}
        ours = next(key for key in tables.index if key[0] == PAPERS_SELECTOR)
        for by, seed in tables.index:
            correlation = float(np.corrcoef(ranks.loc[ours], ranks.loc[by, seed])[0, 1])
            overlap = len(chosen[by, seed] & chosen[ours]) / first
            rows.append((model, by, seed, correlation, overlap, tables.shape[1]))
    return pd.DataFrame(rows, columns=["model", "by", "seed", "rank_correlation", "overlap", "heads"])


def one_unit(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of each model in its first unit of `UNITS`."""
    place = rows["unit"].map({unit: number for number, unit in enumerate(UNITS)}).fillna(len(UNITS))
    return rows[place == place.groupby(rows["model"]).transform("min")]


def changed_share(rows: pd.DataFrame) -> pd.Series:
    """Share of the chosen units that the default setting does not choose; 0 where none is chosen."""
    return (1 - rows["shared"] / rows["selected"]).where(rows["selected"] > 0, 0.0)


def default_setting(rows: pd.DataFrame) -> tuple[float, float]:
    """Window and threshold that one model's others are compared with.

    Raises:
        ValueError: no row, or rows of several settings, are marked as the default.
    """
    marked = rows.loc[rows["default"].astype(bool), ["window", "threshold"]].drop_duplicates()
    if len(marked) != 1:
        raise ValueError(f"ra_i_settings measurements mark {len(marked)} settings as the default; needed: one")
    window, threshold = marked.iloc[0]
    return float(window), float(threshold)
