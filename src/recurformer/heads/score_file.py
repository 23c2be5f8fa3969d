"""The file of head scores, one row per ranking, seed and head, and the choice of heads by files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from recurformer.heads.profile import HeadProfile
from recurformer.heads.select import MEASURED, SELECTORS, select_heads
from recurformer.study import Selection

COLUMNS = ["model", "by", "seed", "layer", "head", "score"]


def score_rows(model: str, by: str, seed: int, scores: Tensor) -> pd.DataFrame:
    """Scores (layers, heads) as rows: model, by, seed, layer, head, score (the highest is replaced first)."""
    layer, head = np.indices(tuple(scores.shape)).reshape(2, -1)
    rows = {"model": model, "by": by, "seed": seed, "layer": layer, "head": head, "score": scores.double().flatten()}
    return pd.DataFrame(rows)[COLUMNS]


def profile_rows(profile: HeadProfile, model: str, seed: int, random_seeds: Sequence[int]) -> pd.DataFrame:
    """The rows of all rankings that a profile gives; of the random one with seeds of its own."""
    return pd.concat(
        score_rows(model, by, at, selector(profile, at))
        for by, selector in SELECTORS.items()
        for at in (random_seeds if by == "random" else [seed])
    )


def read_scores(path: str | Path, by: str) -> Tensor:
    """The scores of one ranking (layers, heads), float64, averaged over its seeds; NaN where a head has none.

    Raises:
        ValueError: the file is unreadable, or holds no such scores.
    """
    try:
        frame = pd.read_parquet(path)
        rankings = sorted(frame["by"].unique())
        table = frame[frame["by"] == by].pivot_table(index="layer", columns="head", values="score", dropna=False)
    except (OSError, KeyError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"{path}: no head scores written by `recurformer head-scores` ({error})") from None
    if by not in rankings:
        raise ValueError(f"{path}: holds no scores {by!r}, only {', '.join(rankings)}")
    return torch.from_numpy(table.to_numpy(dtype=np.float64, copy=True))


def chosen_heads(profile: str, scores: str | None, settings: Selection, beta: float, seed: int) -> list[list[int]]:
    """The replaced query heads of each layer, by the files of a profile and, for measured rankings, of scores.

    Raises:
        ValueError: the ranking needs scores and there are none.
    """
    measured = read_scores(scores, settings.by) if scores and settings.by in MEASURED else None
    return select_heads(HeadProfile.load(profile), beta, seed=seed, measured=measured, **settings.model_dump())
