"""Choosing the heads to replace: the share beta that a ranking puts first (section 3.2)."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from recurformer.heads.profile import HeadProfile
from recurformer.study.method import MeasuredScore, Unit

Scope = Literal["global", "layer"]
UNITS = get_args(Unit)
SCOPES = get_args(Scope)


def ra_i_scores(profile: HeadProfile, seed: int = 0) -> Tensor:
    """RA-I, ties broken by mean recency ratio. Replaces the most recency-aware heads first, as the paper does.

    The ratio is scaled below 1 / heads, so that it breaks ties only, also between the mean RA-I of groups of heads.
    """
    return profile.ra_i.double() + profile.mean_rr / (profile.shape[1] + 1)


def mean_rr_scores(profile: HeadProfile, seed: int = 0) -> Tensor:
    """Mean recency ratio: the same idea without a threshold."""
    return profile.mean_rr


def random_scores(profile: HeadProfile, seed: int = 0) -> Tensor:
    """A random ranking, as a control."""
    return random_ranking(*profile.shape, seed=seed)


def inverse_ra_i_scores(profile: HeadProfile, seed: int = 0) -> Tensor:
    """The least recency-aware heads first: the opposite of the paper's choice."""
    return -ra_i_scores(profile)


# name -> f(profile, seed) -> scores (layers, heads), the highest is replaced first
SELECTORS: dict[str, Callable[[HeadProfile, int], Tensor]] = {
    "ra_i": ra_i_scores,
    "mean_rr": mean_rr_scores,
    "random": random_scores,
    "inverse_ra_i": inverse_ra_i_scores,
}
MEASURED = get_args(MeasuredScore)
"""Rankings whose scores need the model itself, not its profile: `recurformer.heads.scores` measures them."""


def random_ranking(layers: int, heads: int, seed: int = 0) -> Tensor:
    """Random scores (layers, heads) that depend only on the seed, for shapes without weights."""
    return torch.rand(layers, heads, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def replaced_count(units: int, beta: float) -> int:
    """How many of `units` are replaced: Python's `round(units * beta)`, so a half goes to the even neighbour.

    Raises:
        ValueError: beta outside [0, 1].
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta} must lie in [0, 1]: it is a share of the heads")
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
        raise ValueError("scope='layer' takes a share of each layer, unit='layer' whole layers: use scope='global'")
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
    scores = _scores(profile, by, seed, measured)
    return rank_heads(scores, profile.kv_heads, beta, unit, scope, profile.sliding)


def _scores(profile: HeadProfile, by: str, seed: int, measured: Tensor | None) -> Tensor:
    if by in SELECTORS:
        return SELECTORS[by](profile, seed)
    if by not in MEASURED:
        raise ValueError(f"by={by!r} is not a ranking; choose one of {', '.join((*SELECTORS, *MEASURED))}")
    if measured is None:
        raise ValueError(
            f"by={by!r} needs scores that `recurformer head-scores` has measured on the model (--scores FILE)"
        )
    if measured.shape != profile.shape:
        raise ValueError(f"by={by!r}: scores of {tuple(measured.shape)} layers and heads, profile of {profile.shape}")
    return measured
