"""The paper's tables against themselves and against the numbers in its text."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import pandas as pd

from recurformer.paper import BACKBONE_LABELS, CELLS, NUMBERS, TABLE2_BETAS, PrintedCell, label
from recurformer.paper.sizes import CACHE_LENGTHS, LLAMA2_7B_LAYERS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO

TABLE2 = {(cell.model, cell.method, cell.quantity): cell for cell in CELLS if cell.table == 2}
TABLE4 = {(cell.model, cell.quantity, cell.beta): cell for cell in CELLS if cell.table == 4}
TABLE5 = {(cell.model, cell.part, cell.quantity): cell for cell in CELLS if cell.table == 5}
WIDEST = 1.97
"""Half-width of a 95 % interval of a mean of values that are not negative, over that mean, at most."""
CACHE_DIGIT = 0.0001
"""Unit of the last printed digit of a cache size."""
LLAMA2_DIGIT = 0.001
"""Llama2-7B's cells end in a zero: they are rounded to three decimals."""


@dataclass(frozen=True)
class Audited:
    """What a rule found where it was applied.

    Attributes:
        id: "audit/RULE" or "audit/RULE/PLACE".
        rule: what must hold if the paper agrees with itself, one sentence.
        arithmetic: every step, as a reader would write it.
        consistent: whether the rule holds there.
        at_stake: ids of the printed cells and statements that cannot stand where it does not hold.
    """

    id: str
    rule: str
    place: str
    arithmetic: tuple[str, ...]
    consistent: bool
    at_stake: tuple[str, ...] = ()

    @property
    def claims(self) -> tuple[str, ...]:
        """Ids of what cannot stand."""
        return () if self.consistent else self.at_stake


def column_of(model: str, quantity: str) -> list[PrintedCell]:
    """Table 4's cells of a model and quantity, by beta."""
    return [cell for (name, what, _), cell in TABLE4.items() if (name, what) == (model, quantity)]


def monotone() -> Iterator[Audited]:
    """The cache must fall and the longest input rise when more heads are replaced."""
    for (quantity, falls), model in product((("cs_10k", True), ("cs_60k", True), ("l_m", False)), BACKBONE_LABELS):
        row = column_of(model, quantity)
        broken = [(a, b) for a, b in pairwise(row) if (b.value >= a.value if falls else b.value <= a.value)]
        steps = [
            f"β {a.beta:.2f} → {b.beta:.2f}: {a.printed} → {b.printed}, larger by {b.value - a.value:.4f}"
            for a, b in broken
        ]
        order = (" > " if falls else " < ").join(cell.printed for cell in row)
        yield Audited(
            f"audit/monotone/{model}/{quantity}",
            f"{'the cache shrinks' if falls else 'the longest input grows'} when more heads are replaced",
            f"Table 4, {label(model)}, {quantity}", tuple(steps) or (order,), not broken,
            tuple(b.id for _, b in broken),
        )  # fmt: skip


def recurrent_state() -> Iterator[Audited]:
    """The part of the cache that does not grow with the text belongs to the Mamba blocks: more of them, more of it.

    cs = kept + state / length at both lengths, so state = (cs_10k - cs_60k) · 10,240 · 61,440 / 51,200, in tokens.
    """
    short, long = CACHE_LENGTHS["cs_10k"], CACHE_LENGTHS["cs_60k"]
    scale = short * long / (long - short)
    for model in BACKBONE_LABELS:
        pairs = list(zip(column_of(model, "cs_10k"), column_of(model, "cs_60k"), strict=True))
        digit = LLAMA2_DIGIT if all(a.printed.endswith("0") for a, _ in pairs) else CACHE_DIGIT
        rounding = digit * scale
        states = [(a.value - b.value) * scale for a, b in pairs]
        steps = [
            f"β {a.beta:.2f}: ({a.printed} − {b.printed}) · {scale:,.0f} = {state:.1f} tokens"
            for (a, b), state in zip(pairs, states, strict=True)
        ]
        yield Audited(
            f"audit/recurrent-state/{model}",
            "the share of the cache that does not grow with the text does not shrink when more heads are replaced",
            f"Table 4, {label(model)}, cs_10k and cs_60k",
            (*steps, f"rounding of the printed digits: ±{rounding:.1f} tokens each"),
            all(after >= before - 2 * rounding for before, after in pairwise(states)),
        )  # fmt: skip


def cache_tolerance(model: str) -> float:
    """Half of the last digit: Llama2-7B's cells are printed with four decimals and rounded to three."""
    return 0.0005 if model == "llama2-7b" else 0.00005


def cache_columns(cache: pd.DataFrame) -> Iterator[Audited]:
    """Table 4's cache cells of each model under each reading of grouped-query attention, and what is left over.

    Args:
        cache: model, unit, beta, length, ratio.
    """
    for model in BACKBONE_LABELS:
        counted = cache[cache["model"] == model].set_index(["unit", "length", "beta"])["ratio"].to_dict()
        cells = [cell for quantity in CACHE_LENGTHS for cell in column_of(model, quantity)]
        at = [(CACHE_LENGTHS[cell.quantity], cell.beta) for cell in cells]
        readings = {
            unit: [counted.get((unit, *where), math.nan) - cell.value for where, cell in zip(at, cells, strict=True)]
            for unit in ("kv_group", "head")
        }
        complete = {unit: rest for unit, rest in readings.items() if not any(map(math.isnan, rest))}
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
        yield Audited(
            f"audit/cache-columns/{model}",
            f"one reading of the method gives every printed cache size, within {tolerance:.5f}",
            f"Table 4, {label(model)}, cs_10k and cs_60k", tuple(steps), fits,
        )  # fmt: skip


def table2_in_table4() -> Iterator[Audited]:
    """Table 4 extends Table 2: the cells that both have must be the same."""
    for model in BACKBONE_LABELS:
        lines = (("Original Model", 0.0), ("RecurFormer", TABLE2_BETAS[model]))
        pairs = [
            (TABLE2[model, method, quantity], TABLE4[model, quantity, beta])
            for (method, beta), quantity in product(lines, ("l_m", "h_gq", "cs_10k", "cs_60k"))
        ]
        steps = [
            f"{a.method}, β {b.beta:.2f}, {a.quantity}: {a.printed} {'=' if a.value == b.value else '≠'} {b.printed}"
            for a, b in pairs
        ]
        yield Audited(
            f"audit/table2-in-table4/{model}", "Tables 2 and 4 print the same where they overlap",
            f"Tables 2 and 4, {label(model)}", tuple(steps), all(a.value == b.value for a, b in pairs),
        )  # fmt: skip


def text_numbers() -> Iterator[Audited]:
    """Percentages and other numbers of the text against Table 2."""
    for number in NUMBERS:
        cell = TABLE2[number.model, number.method, number.quantity]
        value = 100 * (1 - cell.value) if number.reduction else cell.value
        consistent = abs(value - number.value) <= number.half_digit + 1e-9
        sign = "=" if consistent else "≠"
        step = (
            f"100 · (1 − {cell.printed}) = {value:.2f} {sign} {number.printed} to its digits"
            if number.reduction
            else f"{cell.printed} {sign} {number.printed}"
        )
        yield Audited(
            f"audit/{number.id}", "a number in the text is that of Table 2",
            number.place, (step,), consistent, (number.id,),
        )  # fmt: skip


def overlap() -> Iterator[Audited]:
    """Section 4.4 says "as indicated by the non-overlapping confidence intervals": each pair of Table 5."""
    for model, norm in product(BACKBONE_LABELS, ("l1", "l2")):
        first, other = (TABLE5[model, part, f"{norm}_interval"] for part in ("first", "other"))
        low, high = max(first.bounds[0], other.bounds[0]), min(first.bounds[1], other.bounds[1])
        step = f"first {first.printed}, others {other.printed}: " + (
            "apart" if low > high else f"both hold [{low:.4f}, {high:.4f}]"
        )
        # The sentence names the two smaller models; of Qwen2-7B it says that the variability is higher.
        claimed = model != "qwen2-7b"
        holds = low > high or not claimed
        yield Audited(
            f"audit/overlap/{model}/{norm}",
            "confidence intervals called non-overlapping do not overlap" if claimed
            else "section 4.4 does not say of this model that its intervals are apart",
            f"Section 4.4 and Table 5, {label(model)}, {norm.upper()}", (step,), holds,
            ("text/non-overlapping",),
        )  # fmt: skip


def intervals() -> Iterator[Audited]:
    """The half-width of a 95 % interval of a mean of contributions, which are never negative.

    n values of mean m that are not negative have at most the standard deviation m · √n, all of it in one value. So the
    half-width, 1.96 standard deviations over √n, is at most 1.96 · m; Student's t for 512 samples gives 1.97.
    """
    for (model, part, quantity), cell in TABLE5.items():
        if not quantity.endswith("_interval"):
            continue
        mean = TABLE5[model, part, quantity.replace("interval", "mean")]
        (low, high), where = cell.bounds, cell.id.removeprefix("table5/")
        widths = (high - low) / 2 / mean.value
        possible = widths <= WIDEST
        step = f"({high:.4f} − {low:.4f}) / 2 / {mean.printed} = {widths:.2f} {'≤' if possible else '>'} {WIDEST:g}"
        yield Audited(
            f"audit/width/{where}",
            "the 95 % interval of a mean of values that are not negative reaches at most 1.97 means to each side",
            cell.place, (step,), possible, (cell.id,),
        )  # fmt: skip
        middle = (low + high) / 2
        centred = abs(middle - mean.value) <= 1.5 * CACHE_DIGIT
        yield Audited(
            f"audit/centred/{where}", "an interval of the form mean ± s has its mean in the middle", cell.place,
            (f"({low:.4f} + {high:.4f}) / 2 = {middle:.5f} {'≈' if centred else '≠'} {mean.printed}",), centred,
        )  # fmt: skip


def _pyramid(kept: float, length: int) -> float:
    """Share of the tokens that layers 0, 1, … retain when each keeps a share of what the one before it had."""
    sizes = [max(PYRAMIDINFER_MINIMUM, int(length * kept**layer)) for layer in range(LLAMA2_7B_LAYERS)]
    return sum(sizes) / LLAMA2_7B_LAYERS / length


def eviction_ratio() -> Audited:
    """Appendix B's token eviction ratio against the caches that Table 2 prints."""
    steps, consistent = [], True
    for quantity, length in CACHE_LENGTHS.items():
        printed = TABLE2["llama2-7b", "PyramidInfer", quantity]
        evicted, kept = _pyramid(1 - PYRAMIDINFER_RATIO, length), _pyramid(PYRAMIDINFER_RATIO, length)
        consistent &= abs(evicted - printed.value) <= CACHE_DIGIT / 2
        steps += [
            f"{quantity}, {PYRAMIDINFER_RATIO:g} evicted from layer to layer: mean over {LLAMA2_7B_LAYERS} layers l of "
            f"max({PYRAMIDINFER_MINIMUM}, ⌊{length:,} · {1 - PYRAMIDINFER_RATIO:g}^l⌋) / {length:,} = {evicted:.4f} "
            f"≠ {printed.printed}",
            f"{quantity}, {PYRAMIDINFER_RATIO:g} kept: {kept:.4f}, printed {printed.printed}",
        ]
    return Audited(
        "audit/eviction-ratio", "the ratio called an eviction ratio gives the printed cache when so much is evicted",
        "Appendix B and Table 2", tuple(steps), consistent, ("appendix/eviction-ratio",),
    )  # fmt: skip
