"""Choosing the heads to replace: the share beta that a ranking puts first (section 3.2).

Besides: the file of head scores, with one row per ranking, seed and head; and the dependence of the choice on the two
settings of RA-I, the window k and the threshold alpha.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recurformer.heads.profile import HeadProfile
from recurformer.study.method import MEASURED, MIXER_PRICE, Selection, Unit

Scope = Literal["global", "layer"]
UNITS = get_args(Unit)
SCOPES = get_args(Scope)


def ra_i_scores(profile: HeadProfile, seed: int = 0) -> Tensor:
    """RA-I, ties broken by mean recency ratio. Replaces the most recency-aware heads first, as the paper does.

    The ratio is scaled below 1 / heads, so that it breaks ties only, also between the mean RA-I of groups of heads.
    """
    return profile.ra_i.double() + profile.mean_rr / (profile.shape[1] + 1)


# name -> f(profile, seed) -> scores (layers, heads), the highest is replaced first
SELECTORS: dict[str, Callable[[HeadProfile, int], Tensor]] = {
    "ra_i": ra_i_scores,
    "mean_rr": lambda profile, seed: profile.mean_rr,  # the same idea without a threshold
    "random": lambda profile, seed: random_ranking(*profile.shape, seed=seed),  # a control
    "inverse_ra_i": lambda profile, seed: -ra_i_scores(profile),  # the opposite of the paper's choice
}


def random_ranking(layers: int, heads: int, seed: int = 0) -> Tensor:
    """Random scores (layers, heads) that depend only on the seed, for shapes without weights."""
    return torch.rand(layers, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def replaced_count(units: int, beta: float) -> int:
    """How many of `units` are replaced: Python's `round(units * beta)`, so a half goes to the even neighbour.

    Raises:
        ValueError: beta outside [0, 1].
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta} must lie in [0, 1]: it is a fraction of the heads")
    return round(units * beta)


def _refuse_missing(scores: Tensor, sliding: Sequence[int] = ()) -> None:
    missing = (~scores.isfinite()).index_fill(0, torch.tensor(sliding, dtype=torch.long), False).nonzero()
    if len(missing):
        layer, head = missing[0].tolist()
        raise ValueError(f"layer {layer} head {head} has no score: profile the model before any head is replaced")


def unit_scores(scores: Tensor, kv_heads: int, unit: Unit) -> Tensor:
    """The mean score of the heads of each unit, (layers, units of a layer), float64.

    Raises:
        ValueError: an unknown unit, kv_heads not a divisor of the heads, a score not finite.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is unknown; choose one of {', '.join(UNITS)}")
    layers, heads = scores.shape
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads} must divide the {heads} heads of a layer")
    _refuse_missing(scores)
    units = {"kv_group": kv_heads, "head": heads, "layer": 1}[unit]
    return scores.double().reshape(layers, units, heads // units).mean(-1)


def replacement_order(pool: Tensor) -> Tensor:
    """Indices of each row's scores, the first replaced first; equal scores keep their order: layer, then head."""
    return pool.sort(dim=1, descending=True, stable=True).indices


def rank_heads(
    scores: Tensor,
    kv_heads: int,
    beta: float,
    unit: Unit = "kv_group",
    scope: Scope = "global",
    sliding: Sequence[int] = (),
) -> list[list[int]]:
    """Take the share `beta` of units with the highest scores; equal scores in order of layer, then head.

    Args:
        scores: (layers, heads), finite but in layers of `sliding`.
        kv_heads: key-value heads in a layer; query heads g * heads / kv_heads onwards share the key-value head g.
        beta: share of the units, in [0, 1]; see `replaced_count`.
        unit: "kv_group" takes all query heads of a key-value head together, ranked by their mean score, so that its
            cache is freed; "head" takes single query heads; "layer" whole layers, ranked by their mean score.
        scope: "global" ranks over all layers, "layer" takes the share in each layer.
        sliding: layers with a sliding window. They stay as they are, and `beta` is a share of the others.

    Returns:
        For each layer the chosen query heads in ascending order.

    Raises:
        ValueError: an unknown unit or scope, whole layers in each layer, beta outside [0, 1], kv_heads not a divisor
            of the heads, a score not finite, no layer without a sliding window.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r} is unknown; choose one of {', '.join(SCOPES)}")
    if unit == scope == "layer":
        raise ValueError("scope='layer' takes a fraction of each layer, unit='layer' whole layers: use scope='global'")
    candidates = [layer for layer in range(len(scores)) if layer not in sliding]
    if not candidates:
        raise ValueError("every layer attends through a sliding window: there is no head that could be replaced")
    _refuse_missing(scores, sliding)
    pool = unit_scores(scores[candidates], kv_heads, unit)
    layers, units = pool.shape
    if scope == "global":
        pool = pool.reshape(1, -1)
    count = replaced_count(pool.shape[1], beta)
    first = replacement_order(pool)[:, :count]
    chosen = torch.zeros(pool.shape, dtype=torch.bool).scatter_(1, first, True).reshape(layers, units)
    heads: list[list[int]] = [[] for _ in scores]
    for layer, row in zip(candidates, chosen, strict=True):
        heads[layer] = row.repeat_interleave(scores.shape[1] // units).nonzero().flatten().tolist()
    return heads


def select_heads(
    profile: HeadProfile,
    beta: float,
    unit: Unit = "kv_group",
    scope: Scope = "global",
    by: str = "ra_i",
    seed: int = 0,
    measured: Tensor | None = None,
) -> list[list[int]]:
    """Choose the query heads to replace, per layer, for `recurformer.convert`.

    A larger beta chooses a superset (same profile and settings). See `rank_heads` for units, scopes and rounding.
    Layers with a sliding window are left out, of the shares too.

    Args:
        profile: recency ratios of the model before conversion.
        beta: share of the units to replace, in [0, 1].
        unit: "kv_group" (default: frees the key-value cache under grouped-query attention), "head" or "layer".
        scope: "global" (default: the only reading under which the paper's cache sizes fit) or "layer".
        by: a name in `SELECTORS` or `MEASURED`.
        seed: seed of the random ranking.
        measured: scores for a name in `MEASURED`, (layers, heads); the highest are replaced first.

    Raises:
        ValueError: an unknown name, beta outside [0, 1], heads without a recency ratio, or measured scores that are
            missing or of another shape.
    """
    _refuse_missing(profile.mean_rr, profile.sliding)
    if by in SELECTORS:
        scores = SELECTORS[by](profile, seed)
    elif by not in MEASURED:
        raise ValueError(f"by={by!r} is not a ranking; choose one of {', '.join((*SELECTORS, *MEASURED))}")
    elif measured is None:
        raise ValueError(f"by={by!r} needs scores that {measured_by(by)} has measured on the model (--scores FILE)")
    elif measured.shape != profile.shape:
        raise ValueError(f"by={by!r}: scores of {tuple(measured.shape)} layers and heads, profile of {profile.shape}")
    else:
        scores = measured
    return rank_heads(scores, profile.kv_heads, beta, unit, scope, profile.sliding)


def score_rows(model: str, by: str, seed: int, scores: Tensor) -> pd.DataFrame:
    """Scores (layers, heads) as rows: model, by, seed, layer, head, score (the highest is replaced first)."""
    layer, head = np.indices(tuple(scores.shape)).reshape(2, -1)
    rows = {"model": model, "by": by, "seed": seed, "layer": layer, "head": head, "score": scores.double().flatten()}
    return pd.DataFrame(rows)


def profile_rows(profile: HeadProfile, model: str, seed: int, random_seeds: Sequence[int]) -> pd.DataFrame:
    """The rows of all rankings that a profile gives; of the random one with seeds of its own."""
    return pd.concat(
        score_rows(model, by, at, selector(profile, at))
        for by, selector in SELECTORS.items()
        for at in (random_seeds if by == "random" else [seed])
    )


def measured_by(by: str) -> str:
    """The command that measures the scores of a ranking in `MEASURED`."""
    return f"`recurformer {'mixer-prices' if by == MIXER_PRICE else 'head-scores'}`"


def read_scores(path: str | Path, by: str) -> Tensor:
    """The scores of one ranking (layers, heads), float64, averaged over its seeds; NaN where a head has none.

    Prices are of the file's first mixer, (layers, KV heads), and the cheapest group has the highest score.

    Raises:
        ValueError: the file is unreadable, or holds no such scores.
    """
    import pyarrow as pa  # an extra, which choosing by a profile at hand does not need

    try:
        frame = pd.read_parquet(path)
        if by == MIXER_PRICE:
            frame = frame[frame["mixer"] == frame["mixer"].iloc[0]]
            frame = frame.assign(by=by, head=frame["group"], score=-frame["cost"])
        rankings = sorted(frame["by"].unique())
        table = frame[frame["by"] == by].pivot_table(index="layer", columns="head", values="score", dropna=False)
    except (OSError, KeyError, IndexError, TypeError, pa.ArrowException) as error:
        raise ValueError(f"{path}: no head scores written by {measured_by(by)} ({error})") from None
    if by not in rankings:
        raise ValueError(f"{path}: holds no scores {by!r}, only {', '.join(rankings)}")
    return torch.from_numpy(table.to_numpy(dtype=np.float64, copy=True))


def chosen_heads(profile: str, scores: str | None, settings: Selection, beta: float, seed: int) -> list[list[int]]:
    """The replaced query heads of each layer, by the files of a profile and, for measured rankings, of scores.

    Raises:
        ValueError: the ranking needs scores and there are none.
    """
    of_model = HeadProfile.load(profile)
    measured = read_scores(scores, settings.by) if scores and settings.by in MEASURED else None
    if measured is not None and settings.by == MIXER_PRICE:
        measured = _on_every_head(measured, of_model)
    return select_heads(of_model, beta, seed=seed, measured=measured, **settings.model_dump())


def _on_every_head(of_groups: Tensor, profile: HeadProfile) -> Tensor:
    """Scores of groups in the layers that may be changed, on every head, (layers, heads); NaN in all other layers."""
    expected = (len(profile.candidates), profile.kv_heads)
    if of_groups.shape != expected:
        raise ValueError(f"prices of {tuple(of_groups.shape)} layers and KV heads, profile of {expected}")
    scores = torch.full(profile.shape, float("nan"), dtype=torch.float64)
    scores[profile.candidates] = of_groups.repeat_interleave(profile.shape[1] // profile.kv_heads, 1)
    return scores


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
    rows = []
    for unit, profile, threshold in product(units, profiles, thresholds):
        usual, ranks = (
            replacement_ranks(ra_i_scores(of)[of.candidates], of.kv_heads, unit)
            for of in (default, profile.with_threshold(threshold))
        )
        common = {
            "rank_correlation": rank_correlation(ranks, usual),
            "default": (profile.window, threshold) == (default.window, default.threshold),
        }
        for beta in betas:
            setting = {"model": default.model, "window": profile.window, "threshold": threshold, "beta": beta}
            count = replaced_count(len(ranks), beta)
            shared = int(((ranks < count) & (usual < count)).sum())
            rows.append({**setting, "unit": unit, "selected": count, "shared": shared, **common})
    return pd.DataFrame(rows)
