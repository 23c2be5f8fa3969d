"""Readings of the method that the paper does not spell out, tried on its columns of cache sizes."""

import math
from collections.abc import Callable, Iterator
from itertools import product

from recurformer.claims.audit.tables import Audited, cache_tolerance, column_of
from recurformer.paper import BACKBONE_LABELS, label
from recurformer.paper.sizes import CACHE_LENGTHS, D_CONV
from recurformer.published import PUBLISHED

Shape = dict[str, int]
ROUNDINGS: dict[str, Callable[[float], int]] = {"down": math.floor, "nearest": round, "up": math.ceil}


def _freed(shape: Shape, beta: float, unit: str, scope: str, rounding: Callable[[float], int]) -> tuple[float, float]:
    """Share of the key-value heads that are freed, and share of the query heads that are replaced.

    Args:
        shape: layers, heads and kv_heads of a layer.
        beta: as printed.
        unit: "kv_group": groups are chosen, each is freed; "head": query heads are chosen, a group that keeps none is
            freed, by chance; "any": likewise, a group that loses one is freed; "share": each query head counts as its
            part of a key-value head.
        scope: "model" or "layer": the number that is rounded.
        rounding: to whole units.
    """
    whole = shape["heads"] if unit != "kv_group" else shape["kv_heads"]
    whole *= shape["layers"] if scope == "model" else 1
    replaced = rounding(beta * whole) / whole
    group = shape["heads"] // shape["kv_heads"]
    freed = {"kv_group": replaced, "share": replaced, "head": replaced**group, "any": 1 - (1 - replaced) ** group}
    return freed[unit], replaced


def _state(shape: Shape, freed: float, replaced: float, width: str, expand: int, states: int, size: float) -> float:
    """Bytes of all states over those of one token's keys and values in two bytes each."""
    features = {
        "query heads": replaced * shape["heads"] * shape["head_dim"],
        "key-value heads": freed * shape["kv_heads"] * shape["head_dim"],
        "model": float(replaced > 0) * shape["hidden"],
    }[width]
    return expand * features * (states + D_CONV) * size / (2 * 2 * shape["kv_heads"] * shape["head_dim"])


def readings(model: str) -> Iterator[tuple[str, list[float]]]:
    """Every reading with its residues, ours less the printed, of all cells of a model that can hold at once."""
    known = PUBLISHED[model]
    heads = known["num_attention_heads"]
    shape = {
        "layers": known["num_hidden_layers"], "heads": heads, "kv_heads": known["num_key_value_heads"],
        "hidden": known["hidden_size"], "head_dim": known["hidden_size"] // heads,
    }  # fmt: skip
    cells = [cell for quantity in CACHE_LENGTHS for cell in column_of(model, quantity)]
    possible = [cell for cell in cells if not (model == "qwen2-7b" and cell.beta == 0.75)]  # larger than at 0.5
    units, widths = ("kv_group", "head", "any", "share"), ("query heads", "key-value heads", "model")
    choices = product(units, ("model", "layer"), ROUNDINGS, widths, (1, 2), (0, 1, 4, 8, 16, 64, 128), (1, 2, 4))
    for unit, scope, name, width, expand, states, size in choices:
        text = (
            f"unit {unit}, rounded {name} in each {scope}; states of {states} a channel in {size} byte(s) over the "
            f"width of the {width} x {expand}"
        )
        residues = []
        for cell in possible:
            freed, replaced = _freed(shape, float(cell.beta or 0), unit, scope, ROUNDINGS[name])
            state = _state(shape, freed, replaced, width, expand, states, size)
            residues.append(1 - freed + state / CACHE_LENGTHS[cell.quantity] - cell.value)
        yield text, residues


def cache_readings() -> Iterator[Audited]:
    """The nearest of all readings that were tried on each model's column."""
    for model in BACKBONE_LABELS:
        found = list(readings(model))
        text, residues = min(found, key=lambda reading: max(map(abs, reading[1])))
        worst = max(map(abs, residues))
        tolerance = cache_tolerance(model)
        yield Audited(
            f"audit/cache-readings/{model}",
            f"one of {len(found):,} readings of units, rounding and states gives every printed size, within "
            f"{tolerance:.5f}",
            f"Table 4, {label(model)}, cs_10k and cs_60k",
            (f"nearest: {text}", f"mean residue {sum(map(abs, residues)) / len(residues):.4f}, largest {worst:.4f}"),
            worst <= tolerance + 1e-9,
        )  # fmt: skip
