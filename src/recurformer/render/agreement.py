"""How far other selectors agree with RA-I in the heads that they put first."""

import numpy as np
import pandas as pd

from recurformer.render.ablations import PAPERS_SELECTOR
from recurformer.render.measurements import groups, require_values

SHARE = 0.5
"""The share of heads whose overlap is shown."""


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
