"""The paper's cache columns against caches that were counted."""

import pandas as pd

from recurformer.claims.audit.finding import Audited
from recurformer.paper import BACKBONE_LABELS, CELLS, label
from recurformer.paper.sizes import CACHE_LENGTHS


def cache_tolerance(model: str) -> float:
    """Half of the last digit: Llama2-7B's cells are printed with four decimals and rounded to three."""
    return 0.0005 if model == "llama2-7b" else 0.00005


def cache_columns(cache: pd.DataFrame) -> list[Audited]:
    """Table 4's cache cells of each model under each reading of grouped-query attention, and what is left over.

    Args:
        cache: model, unit, beta, length, ratio.
    """
    found = []
    for model in BACKBONE_LABELS:
        counted = cache[cache["model"] == model].set_index(["unit", "length", "beta"])["ratio"].to_dict()
        cells = [c for c in CELLS if c.table == 4 and c.model == model and c.quantity in CACHE_LENGTHS]
        readings: dict[str, list[float]] = {}
        for cell in cells:
            for unit in ("kv_group", "head"):
                ratio = counted.get((unit, CACHE_LENGTHS[cell.quantity], cell.beta))
                if ratio is not None:
                    readings.setdefault(unit, []).append(ratio - cell.value)
        complete = {unit: rest for unit, rest in readings.items() if len(rest) == len(cells)}
        if not complete:
            continue
        nearest = min(complete, key=lambda unit: sum(map(abs, complete[unit])))
        tolerance = cache_tolerance(model)
        steps = [
            f"reading {unit}: mean residue {sum(map(abs, rest)) / len(rest):.4f}, largest {max(map(abs, rest)):.4f}"
            for unit, rest in complete.items()
        ]
        steps.append(f"nearest: {nearest}; counted − printed, cell by cell:")
        steps += [
            f"{cell.quantity}, β {cell.beta:.2f}: {cell.value + rest:.4f} − {cell.printed} = {rest:+.4f}"
            for cell, rest in zip(cells, complete[nearest], strict=True)
        ]
        fits = max(map(abs, complete[nearest])) <= tolerance
        found.append(
            Audited(f"audit/cache-columns/{model}",
                f"one reading of the method gives every printed cache size, within {tolerance:.5f}",
                f"Table 4, {label(model)}, cs_10k and cs_60k", tuple(steps), fits)
        )  # fmt: skip
    return found
