"""The paper's tables against themselves and against the numbers in its text."""

from itertools import pairwise

from recurformer.claims.audit.finding import Audited
from recurformer.paper import BACKBONE_LABELS, CELLS, NUMBERS, PrintedCell, label
from recurformer.paper.sizes import CACHE_LENGTHS, LLAMA2_7B_LAYERS, PYRAMIDINFER_MINIMUM, PYRAMIDINFER_RATIO
from recurformer.paper.table2 import BETAS

TABLE2 = {(cell.model, cell.method, cell.quantity): cell for cell in CELLS if cell.table == 2}
TABLE4 = {(cell.model, cell.quantity, cell.beta): cell for cell in CELLS if cell.table == 4}
WIDEST = 1.97
"""Half-width of a 95 % interval of a mean of values that are not negative, over that mean, at most."""
CACHE_DIGIT = 0.0001
"""Unit of the last printed digit of a cache size."""
LLAMA2_DIGIT = 0.001
"""Llama2-7B's cells end in a zero: they are rounded to three decimals."""


def _row(model: str, quantity: str) -> list[PrintedCell]:
    return [cell for (name, what, _), cell in TABLE4.items() if (name, what) == (model, quantity)]


def monotone() -> list[Audited]:
    """The cache must fall and the longest input rise when more heads are replaced."""
    found = []
    for quantity, falls in (("cs_10k", True), ("cs_60k", True), ("l_m", False)):
        for model in BACKBONE_LABELS:
            row = _row(model, quantity)
            broken = [(a, b) for a, b in pairwise(row) if (b.value >= a.value if falls else b.value <= a.value)]
            steps = [
                f"β {a.beta:.2f} → {b.beta:.2f}: {a.printed} → {b.printed}, larger by {b.value - a.value:.4f}"
                for a, b in broken
            ]
            order = (" > " if falls else " < ").join(cell.printed for cell in row)
            found.append(
                Audited(
                    f"audit/monotone/{model}/{quantity}",
                    f"{'the cache shrinks' if falls else 'the longest input grows'} when more heads are replaced",
                    f"Table 4, {label(model)}, {quantity}",
                    tuple(steps) or (order,),
                    not broken,
                    tuple(b.id for _, b in broken),
                )
            )
    return found


def recurrent_state() -> list[Audited]:
    """The part of the cache that does not grow with the text belongs to the Mamba blocks: more of them, more of it.

    cs = kept + state / length at both lengths, so state = (cs_10k - cs_60k) · 10,240 · 61,440 / 51,200, in tokens.
    """
    short, long = CACHE_LENGTHS["cs_10k"], CACHE_LENGTHS["cs_60k"]
    scale = short * long / (long - short)
    found = []
    for model in BACKBONE_LABELS:
        digit = LLAMA2_DIGIT if all(c.printed.endswith("0") for c in _row(model, "cs_10k")) else CACHE_DIGIT
        states = [
            (a, b, (a.value - b.value) * scale)
            for a, b in zip(_row(model, "cs_10k"), _row(model, "cs_60k"), strict=True)
        ]
        rounding = digit * scale
        broken = any(after[2] < before[2] - 2 * rounding for before, after in pairwise(states))
        steps = [
            f"β {a.beta:.2f}: ({a.printed} − {b.printed}) · {scale:,.0f} = {state:.1f} tokens" for a, b, state in states
        ]
        found.append(
            Audited(
                f"audit/recurrent-state/{model}",
                "the share of the cache that does not grow with the text does not shrink when more heads are replaced",
                f"Table 4, {label(model)}, cs_10k and cs_60k",
                (*steps, f"rounding of the printed digits: ±{rounding:.1f} tokens each"),
                not broken,
            )
        )
    return found


def table2_in_table4() -> list[Audited]:
    """Table 4 extends Table 2: the cells that both have must be the same."""
    found = []
    for model in BACKBONE_LABELS:
        steps, consistent = [], True
        for method, beta in (("Original Model", 0.0), ("RecurFormer", BETAS[model])):
            for quantity in ("l_m", "h_gq", "cs_10k", "cs_60k"):
                ours, theirs = TABLE2[model, method, quantity], TABLE4[model, quantity, beta]
                consistent &= ours.value == theirs.value
                sign = "=" if ours.value == theirs.value else "≠"
                steps.append(f"{method}, β {beta:.2f}, {quantity}: {ours.printed} {sign} {theirs.printed}")
        found.append(
            Audited(f"audit/table2-in-table4/{model}", "Tables 2 and 4 print the same where they overlap",
                f"Tables 2 and 4, {label(model)}", tuple(steps), consistent)
        )  # fmt: skip
    return found


def text_numbers() -> list[Audited]:
    """Percentages and other numbers of the text against Table 2."""
    found = []
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
        found.append(
            Audited(f"audit/{number.id}", "a number in the text is that of Table 2",
                f"Section 4.1, {label(number.model)}, {number.method}, {number.quantity}", (step,), consistent,
                () if consistent else (number.id,))
        )  # fmt: skip
    return found


def overlap() -> list[Audited]:
    """Section 4.4 says "as indicated by the non-overlapping confidence intervals": each pair of Table 5."""
    found = []
    intervals = {
        (cell.model, cell.quantity, cell.part): cell
        for cell in CELLS
        if cell.table == 5 and cell.quantity.endswith("interval")
    }
    for model in BACKBONE_LABELS:
        for norm in ("l1", "l2"):
            first, other = (intervals[model, f"{norm}_interval", part] for part in ("first", "other"))
            low, high = max(first.bounds[0], other.bounds[0]), min(first.bounds[1], other.bounds[1])
            apart = low > high
            step = f"first {first.printed}, others {other.printed}: " + (
                "apart" if apart else f"both hold [{low:.4f}, {high:.4f}]"
            )
            # The sentence names the two smaller models; of Qwen2-7B it says that the variability is higher.
            claimed = model != "qwen2-7b"
            found.append(
                Audited(f"audit/overlap/{model}/{norm}",
                    "confidence intervals called non-overlapping do not overlap" if claimed
                    else "section 4.4 does not say of this model that its intervals are apart",
                    f"Section 4.4 and Table 5, {label(model)}, {norm.upper()}", (step,), apart or not claimed,
                    () if apart or not claimed else ("text/non-overlapping",))
            )  # fmt: skip
    return found


def intervals() -> list[Audited]:
    """The half-width of a 95 % interval of a mean of contributions, which are never negative.

    n values of mean m that are not negative have at most the standard deviation m · √n, all of it in one value. So the
    half-width, 1.96 standard deviations over √n, is at most 1.96 · m; Student's t for 512 samples gives 1.97.
    """
    found = []
    means = {(c.model, c.part, c.quantity.split("_")[0]): c for c in CELLS if c.quantity.endswith("_mean")}
    for cell in CELLS:
        if not cell.quantity.endswith("_interval"):
            continue
        mean = means[cell.model, cell.part, cell.quantity.split("_")[0]]
        (low, high), where = cell.bounds, cell.id.removeprefix("table5/")
        widths = (high - low) / 2 / mean.value
        possible = widths <= WIDEST
        step = f"({high:.4f} − {low:.4f}) / 2 / {mean.printed} = {widths:.2f} {'≤' if possible else '>'} {WIDEST:g}"
        found.append(
            Audited(f"audit/width/{where}",
                "the 95 % interval of a mean of values that are not negative reaches at most 1.97 means to each side",
                cell.place, (step,), possible, () if possible else (cell.id,))
        )  # fmt: skip
        middle = (low + high) / 2
        centred = abs(middle - mean.value) <= 1.5 * CACHE_DIGIT
        found.append(
            Audited(f"audit/centred/{where}", "an interval of the form mean ± s has its mean in the middle", cell.place,
                (f"({low:.4f} + {high:.4f}) / 2 = {middle:.5f} {'≈' if centred else '≠'} {mean.printed}",), centred)
        )  # fmt: skip
    return found


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
        "Appendix B and Table 2", tuple(steps), consistent, () if consistent else ("appendix/eviction-ratio",),
    )  # fmt: skip
